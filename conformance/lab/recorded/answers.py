"""The recorded answers of SmolLM2 and the real edits, and the files that hold them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
FILES = {name: DATA / f"{name}.jsonl.gz" for name in ("answers", "sampled", "edits")}
ANSWERS, SAMPLED, EDITS = FILES.values()
# The likeliest tokens that are kept of each step.
KEPT = 8


@dataclass(frozen=True)
class Answer:
    """One answer, greedy or sampled, in token ids.

    ``likeliest`` holds the likeliest tokens of each step, and ``logprobs`` their log probabilities in thousandths.
    """

    kind: str
    source: str
    prompt: list[int]
    answer: list[int]
    likeliest: list[list[int]]
    logprobs: list[list[int]]


@dataclass(frozen=True)
class KnownEdit:
    """A text with what is asked, and the text that somebody made of it, in token ids."""

    kind: str
    source: str
    prompt: list[int]
    answer: list[int]


def write(path: Path, about: dict[str, Any], records: Iterable[Any]) -> None:
    """A compressed line for what the file is, then one for each record. The same records give the same bytes."""
    lines = [json.dumps(one, separators=(",", ":")) for one in (about, *map(asdict, records))]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    about, *records = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return about, records


def answers() -> list[Answer]:
    return [Answer(**one) for one in read(ANSWERS)[1]]


def document_of(source: str) -> str:
    """What a source is split by: all prompts of one file, problem, tool or table stay together."""
    return source.partition(":")[0]


def is_judge(source: str) -> bool:
    """Whether a source belongs to the half that no fitting sees, by a hash of its document."""
    return zlib.crc32(document_of(source).encode()) % 2 == 1
