"""One drafted decode of a model, the plain one that it is compared with, and the lines that show it."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step

from conformance.adapters import CONTRARY, Adapters, Drafts
from conformance.oracle.findings import REFUSAL, broken, first_line, not_offered, not_shown, refused
from conformance.oracle.recorder import gaps
from conformance.subjects.decoded import Family, model_of, prompt_of

N = 18
# Logits in fp32 of models of two layers: more than blocks and single tokens are apart, and far less than a fault makes.
NEAR, NEAR_QUANTIZED = 2e-3, 0.2
Steps = list[tuple[int, Any]]


def near(family: Family) -> float:
    return NEAR_QUANTIZED if family.options else NEAR


def tokens_of(steps: Any) -> list[int]:
    return [int(step[0]) for step in steps]


def plain_steps(family: Family, length: int, n: int, **options: Any) -> tuple[Steps, list[Any]]:
    """Plain decoding, from the seed that a drafted run gets, and the cache it leaves."""
    caches = family.caches()
    mx.random.seed(7)
    options = {**family.options, **options, "prompt_cache": caches, "max_tokens": n}
    return list(generate_step(mx.array(prompt_of(length)), model_of(family), **options)), caches


@cache
def plain(family: Family, length: int, n: int = N) -> Steps:
    return plain_steps(family, length, n)[0]


class Decode:
    """A drafted decode that is still to be started."""

    def __init__(self, adapter: Adapters, family: Family, drafter: str, length: int, **options: Any) -> None:
        lacking = sorted((set(options) | set(family.options)) - adapter.options(drafter))
        if lacking:
            not_offered(f"the adapter's decode takes no {', '.join(lacking)}")
        self.adapter, self.family, self.drafter = adapter, family, drafter
        self.prompt, self.options = prompt_of(length), options
        self.caches = family.caches()

    def steps(self, n: int = N, stop: int | None = None, right: list[int] | None = None) -> list[tuple[int, Any, bool]]:
        """Its tokens. What is raised before the first of them may be a refusal."""
        right = tokens_of(plain(self.family, len(self.prompt))) if right is None else right
        drafts = Drafts(self.drafter, [*self.prompt, *right])
        mx.random.seed(7)
        got: list[tuple[int, Any, bool]] = []
        options = {"max_tokens": n, "prompt_cache": self.caches, **self.family.options, **self.options}
        try:
            generator = self.adapter.decode(model_of(self.family), self.prompt, drafts, **options)
            for token, logprobs, drafted in islice(generator, stop):
                got.append((int(token), logprobs, bool(drafted)))
            generator.close()
        except Exception as error:
            if isinstance(error, REFUSAL) and not got:
                refused(error)
            broken(f"after {len(got)} tokens it raises {first_line(error)}")
        return got

    def compare(self, got: Any, right: Steps) -> None:
        a, b = tokens_of(got), tokens_of(right)
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            broken(f"tokens {a[: at + 1][-4:]} instead of {b[: at + 1][-4:]}, at token {at}")
        told = [i for i, step in enumerate(got) if step[1] is not None]
        for i, off in zip(told, gaps([got[i][1] for i in told], [right[i][1] for i in told]), strict=True):
            if off > near(self.family):
                broken(f"the log probabilities of token {i} are off by {off:.2g}")

    def check_drafted(self, got: list[tuple[int, Any, bool]]) -> None:
        if self.drafter != CONTRARY and not any(drafted for _, _, drafted in got):
            not_shown("no drafted token was accepted")


def penalty(tokens: mx.array, logits: mx.array) -> mx.array:
    """Makes what came up lately less likely, by so much that the text is another one."""
    counts = (tokens[-8:][:, None] == mx.arange(logits.shape[-1])).sum(axis=0)
    lowered: mx.array = logits - 6.0 * counts
    return lowered
