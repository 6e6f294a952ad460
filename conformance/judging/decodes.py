"""One drafted decode of a model, the plain one that it is compared with, and the lines that show it."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step

from conformance.adapters import CONTRARY, Adapter, Drafts, contrary, similar
from conformance.judging.cases import REFUSAL, Broken, NotOffered, NotShown, Refused, first_line
from conformance.judging.lines import of_decode
from conformance.judging.models import CYCLE, LAST, PULL, Family, config_of, gap, model_of, prompt_of
from conformance.judging.written import written

N = 18
# Logits in fp32 of models of two layers: more than blocks and single tokens are apart, and far less than a fault makes.
NEAR, NEAR_QUANTIZED = 2e-3, 0.2
Steps = list[tuple[int, Any]]
# The options of a decode as they are written.
OPTIONS = {
    "sampler": "sampler=import_module('mlx_lm.sample_utils').make_sampler(temp=0.8, top_p=0.9)",
    "logits_processors": "logits_processors=[lambda tokens, logits: print(tokens.size, end=' ') or logits]",
}


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

    def __init__(self, adapter: Adapter, family: Family, drafter: str, length: int, **options: Any) -> None:
        lacking = sorted((set(options) | set(family.options)) - adapter.options)
        if lacking:
            raise NotOffered(f"the adapter's decode takes no {', '.join(lacking)}")
        self.adapter, self.family, self.drafter = adapter, family, drafter
        self.prompt, self.options = prompt_of(length), options
        self.caches = family.caches()
        self.n = N
        self.stop: int | None = None

    def steps(self, n: int = N, stop: int | None = None, right: list[int] | None = None) -> list[tuple[int, Any, bool]]:
        """Its tokens. What is raised before the first of them may be a refusal."""
        self.n, self.stop = n, stop
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
                raise Refused(first_line(error)) from error
            raise self.broken(f"after {len(got)} tokens it raises {first_line(error)}") from error
        return got

    def compare(self, got: Any, right: Steps) -> None:
        a, b = tokens_of(got), tokens_of(right)
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            raise self.broken(f"tokens {a[: at + 1][-4:]} instead of {b[: at + 1][-4:]}, at token {at}")
        for i, (step, one) in enumerate(zip(got, right, strict=True)):
            if step[1] is not None and (off := gap([step[1]], [one[1]])) > near(self.family):
                raise self.broken(f"the log probabilities of token {i} are off by {off:.2g}")

    def check_drafted(self, got: list[tuple[int, Any, bool]]) -> None:
        if self.drafter != CONTRARY and not any(drafted for _, _, drafted in got):
            raise NotShown("no drafted token was accepted")

    def broken(self, seen: str) -> Broken:
        return Broken(seen, self.lines(seen))

    def lines(self, seen: str) -> str:
        family, ring = self.family, f"[RotatingKVCache({self.family.max_kv_size}, keep=4) for _ in model.layers]"
        draft_model = contrary if self.drafter == CONTRARY else similar
        options = [f"{name}={value!r}" for name, value in family.options.items()]
        options += [OPTIONS[name] for name in self.options]
        return of_decode(
            written(*self.adapter.functions("decode"), draft_model),
            seen,
            model=family.model,
            config=config_of(family),
            cycle=CYCLE,
            last=LAST,
            pull=PULL,
            drafter=self.drafter,
            draft_model=draft_model.__name__,
            prompt=self.prompt,
            caches=ring if family.max_kv_size else "make_prompt_cache(model)",
            n=self.n,
            stop=self.stop,
            options="".join(f", {option}" for option in options),
        )
