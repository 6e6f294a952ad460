"""The conformance suite for mlx-lm, and its tools. README.md in this folder describes each folder."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
# A llama of one million parameters, trained to copy, edit and quote.
FIXTURE = Path(__file__).parent / "fixture"
