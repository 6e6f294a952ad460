"""The tests of a contract, by what the files of tests say of themselves: docs/contracts.md is made with it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from conformance import ROOT


def files(contract: str) -> Iterator[str]:
    """A line for each file that is in the folder of a contract, or has its mark, and what the judge calls its tests."""
    for path in sorted((ROOT / "conformance").rglob("test_*.py")):
        if path.parent.name == "repository":
            continue
        text = path.read_text("utf-8")
        asked = sorted(set(re.findall(rf'mark\.asked\("({contract} [^"]*)"', text)))
        if asked or f'mark.contract("{contract}")' in text or path.parent.name.startswith(f"{contract.lower()}_"):
            said = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].replace("\n", " ").rstrip(".")
            judged = f" (of `scripts/judge.sh`: {', '.join(asked)})" if asked else ""
            yield f"- {path.relative_to(ROOT).as_posix()}: {said}{judged}"


def show(contract: str) -> None:
    print("\n" + "\n".join(files(contract)) + "\n")
