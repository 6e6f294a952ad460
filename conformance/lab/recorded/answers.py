"""The recorded answers of SmolLM2 and the real edits, in token ids, and the files that hold them."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = {name: Path(__file__).parent / "data" / f"{name}.jsonl.gz" for name in ("answers", "sampled", "edits")}
# The likeliest tokens that are kept of each step.
KEPT = 8


@dataclass(frozen=True)
class Answer:
    """One answer, greedy or sampled.

    ``likeliest`` holds the likeliest tokens of each step, and ``logprobs`` their log probabilities in thousandths.
    """

    kind: str
    source: str
    prompt: list[int]
    answer: list[int]
    likeliest: list[list[int]]
    logprobs: list[list[int]]


def read(path: Path) -> list[dict[str, Any]]:
    """The records: a kind, a source, a prompt, its answer, and more. The first line says how the file was made."""
    _, *records = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return records


def answers() -> list[Answer]:
    return [Answer(**one) for one in read(FILES["answers"])]


def is_judge(source: str) -> bool:
    """Whether a source belongs to the half that no fitting sees, by a hash of its document, before the colon."""
    return zlib.crc32(source.partition(":")[0].encode()) % 2 == 1
