"""What a prompt may go on from that begins like earlier ones, for tokens in lists or characters of a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any


def shared(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many tokens two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@dataclass
class Known:
    """Texts that were read and answered, and the places that the next prompt can go back to."""

    texts: list[tuple[Sequence[Any], set[int]]] = field(default_factory=list)

    def add(self, text: Sequence[Any], places: Iterable[int]) -> None:
        """Note a text with its answer. A prompt can go on from its end, too."""
        self.texts.append((text, {*places, len(text)}))

    def shared(self, prompt: Sequence[Any]) -> int:
        """How much of a prompt is known. Its last token is fed in any case."""
        return min(max((shared(prompt, text) for text, _ in self.texts), default=0), len(prompt) - 1)

    def last(self, prompt: Sequence[Any]) -> int:
        """The last place in what is known of a prompt."""
        most = self.shared(prompt)
        known = [n for text, places in self.texts for n in places if n <= min(most, shared(prompt, text))]
        return max(known, default=0)

    def wrong(self, prompt: Sequence[Any], found: int) -> list[str]:
        """What is wrong where a prompt goes on from so many tokens. A cache that can be trimmed gives more."""
        least, most = self.last(prompt), self.shared(prompt)
        if least <= found <= most:
            return []
        return [f"goes on from {found} tokens: {most} are known, and the last place before that is {least}"]
