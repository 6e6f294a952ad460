"""Draft heads that were really trained, and what they draft: python -m conformance.lab.trained"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# A token of the head of SmolLM2, in forward passes: by the share of the model's weights that it reads.
COST = 0.066
HEADS, DRAFTS = (Path(__file__).parent / name for name in ("heads", "drafts"))


@dataclass(frozen=True)
class HeadDrafts:
    """What a head drafts after each token of a recorded answer, and how likely each token is to it, in percent."""

    kind: str
    source: str
    tokens: list[list[int]]
    chances: list[list[int]]


def path_of(name: str) -> Path:
    """The weights of the head of a model: "fixture" or "smollm2"."""
    return HEADS / f"{name}.safetensors"
