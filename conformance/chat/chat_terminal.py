"""Run a program in its own terminal, such as `mlx_lm.chat`."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance import FIXTURE

COLUMNS = 100
# Far longer than anything here takes, so that a program that hangs fails.
PATIENCE = 120
PROMPT = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} "
_CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x01\x02\r]")
_TURN = re.compile(
    r"(?P<text>.*)\n  (?P<tokens>\d+) tokens · [\d.]+ tok/s · prompt [\d.]+ tok/s · peak [\d.]+ GB\n"
    r"(  Drafting: (?P<drafting>[^\n]*)\n)?",
    re.DOTALL,
)
_DRAFTING = re.compile(r"(\w+), (\d+) tokens drafted, (\d+) accepted, ([\d.]+) tokens-per-forward(, .+)?")


class Terminal:
    """Runs a program, types into it and reads its output."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **env}, start_new_session=True
        )
        os.close(slave)

    def type(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def read_until(self, end: str) -> str:
        """The output up to the text ``end`` or the end of the program, without colours."""
        shown, deadline = b"", time.monotonic() + PATIENCE
        while end not in (text := _CONTROLS.sub("", shown.decode(errors="ignore"))):
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, f"nothing more after {text[-500:]!r}"
            try:
                more = os.read(self._master, 65536)
            except OSError:  # Linux, when the program has ended
                more = b""
            if not more:
                break
            shown += more
        return text

    def end(self) -> int:
        os.close(self._master)
        return self._process.wait(PATIENCE)


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
    command = [sys.executable, "-m", "conformance.chat.chat_recorded", "--model", str(FIXTURE), *args]
    terminal = Terminal(command, env)
    shown, turns = terminal.read_until(PROMPT), []
    for query in queries:
        terminal.type(query)
        answer = terminal.read_until(PROMPT)
        shown += answer
        if len(query) > 1:
            turns.append(Turn.read(answer, query))
    terminal.type("\x04" if interrupt else "q")
    shown += terminal.read_until("bye\n")
    assert terminal.end() == 0, shown
    return Chat(turns, [json.loads(line) for line in record.read_text().splitlines()], shown)
