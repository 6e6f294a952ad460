"""What SmolLM2 said to prompts from real sources, and real edits, as token ids.

The program that wrote them is here at commit 0a89995. The texts are of the packages in wheels.txt.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

FILES = {name: Path(__file__).parent / "data" / f"{name}.jsonl.gz" for name in ("answers", "sampled", "edits")}


def read(path: Path) -> list[dict[str, Any]]:
    """The records: a kind, a source, a prompt, its answer, and more. The first line says how the file was made.

    Of "answers", ``likeliest`` holds the likeliest tokens of each step, and ``logprobs`` their log probabilities in
    thousandths.
    """
    _, *records = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return records


def is_judge(source: str) -> bool:
    """Whether a source belongs to the half that no fitting sees, by a hash of its document, before the colon."""
    return zlib.crc32(source.partition(":")[0].encode()) % 2 == 1
