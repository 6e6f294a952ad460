"""The conformance suite for mlx-lm, and its tools. README.md in this folder describes each folder."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
# A llama of one million parameters, trained to copy, edit and quote.
FIXTURE = Path(__file__).parent / "fixture"


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
