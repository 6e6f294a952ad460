"""The commands and programs that README.md and docs/ show."""

from __future__ import annotations

import re
import textwrap

from conformance import ROOT

README, USE, DRAFTING = "README.md", "docs/use.md", "docs/drafting.md"


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def indented(text: str) -> list[str]:
    """The indented blocks of a text: commands, programs and what they print."""
    found = re.findall(r"(?:(?:^    .*\n)+\n*)*^    .*\n", text, re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def blocks(page: str, words: str) -> list[str]:
    """The blocks of a page that have these words."""
    return [block for block in indented(text_of(page)) if words in block]


def block(page: str, words: str) -> str:
    (found,) = blocks(page, words)
    return found
