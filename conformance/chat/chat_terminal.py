"""Type into `mlx_lm.chat` in a terminal of its own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect

from conformance import FIXTURE

COLUMNS = 100
# Far longer than anything here takes, so that a program that hangs fails.
PATIENCE = 120
PROMPT = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
_CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x01\x02\r]")
_TURN = re.compile(
    r"(?P<text>.*)\n  (?P<tokens>\d+) tokens · [\d.]+ tok/s · prompt [\d.]+ tok/s · peak [\d.]+ GB\n"
    r"(  Drafting: (?P<drafting>[^\n]*)\n)?",
    re.DOTALL,
)
_DRAFTING = re.compile(r"(\w+), (\d+) tokens drafted, (\d+) accepted, ([\d.]+) tokens-per-forward(, .+)?")


@dataclass
class Turn:
    """The output of a turn: the answer and the counts below it."""

    text: str
    tokens: int
    drafting: str | None

    @classmethod
    def read(cls, shown: str, query: str) -> Turn:
        found = _TURN.match(shown.split(query + "\n", 1)[1].lstrip("\n"))
        assert found, shown
        return cls(found["text"], int(found["tokens"]), found["drafting"])

    def counts(self) -> tuple[int, int, float]:
        """(drafted tokens, accepted tokens, tokens for each forward pass)."""
        found = _DRAFTING.fullmatch(self.drafting or "")
        assert found, self.drafting
        return int(found[2]), int(found[3]), float(found[4])


@dataclass
class Chat:
    """A session: the output of each turn, and its record."""

    turns: list[Turn]
    records: list[dict[str, Any]]
    shown: str


def chat(folder: Path, queries: Sequence[str], *args: str, fault: str = "", interrupt: int = 0) -> Chat:
    """Type these queries into `mlx_lm.chat`, then ``q``.

    With ``interrupt``, press Ctrl-C after so many tokens of each answer, and end with Ctrl-D.
    """
    record = folder / "record.jsonl"
    record.unlink(missing_ok=True)
    env = {"RECORD": str(record), "FAULT": fault, "INTERRUPT": str(interrupt)}
    env |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["-m", "conformance.chat.chat_recorded", "--model", str(FIXTURE), *args]
    options: dict[str, Any] = {"encoding": "utf-8", "dimensions": (40, COLUMNS), "timeout": PATIENCE}
    terminal = pexpect.spawn(sys.executable, command, env=os.environ | env, **options)

    def read_until(end: Any) -> str:
        terminal.expect(end)
        return _CONTROLS.sub("", terminal.before)

    shown, turns = read_until(PROMPT), []
    for query in queries:
        terminal.sendline(query)
        answer = read_until(PROMPT)
        shown += answer
        if len(query) > 1:
            turns.append(Turn.read(answer, query))
    terminal.sendline("\x04" if interrupt else "q")
    shown += read_until(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0, shown
    return Chat(turns, [json.loads(line) for line in record.read_text().splitlines()], shown)
