"""Prompts that begin like a cached one: their answers with what is cached, and from nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.draft import DraftStats, Planner
from mlx_lm.draft.model import vocab_size_of
from mlx_lm.generate import BatchGenerator, generate_step, maybe_quantize_kv_cache
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.prefixes import Checkpoints

from conformance.caches.layer_io import leaves
from conformance.caches.machines import WHOLE
from conformance.doors.batch import CLOSE, FREE
from conformance.drafters import Partly
from conformance.oracle.recorder import fed, gap, next_turn
from conformance.subjects.architectures import make_cache, outline, runnable
from conformance.subjects.families import VOCAB, K, lookup

# The windows and chunks of the tiny configurations have 16 tokens. What is fed at once is longer.
WINDOW, FED, ANSWER, STEP, MOST = 16, 24, 20, 8, 16
PROMPT = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(60)]
# The ends of messages.
PLACES = (10, WINDOW - 1, WINDOW, WINDOW + 1, 35, 55)
# How many tokens the next prompt shares: none, at the edges of the window, in the middle, at the ends of messages and
# of what is fed at once, one token from the end, and in the answer.
EDITS = (0, 9, WINDOW - 1, WINDOW, WINDOW + 1, 30, 35, 48, 58, 59, 70, 77)
AFTER_DRAFTS = (WINDOW + 1, 48, 70, 77)
# Models that have no state inside of what is fed at once, and the longest block of tokens that they feed again.
ENDS_ONLY = {"deepseek_v41": 16}
# SSD and MLA: what is fed at once sums in another order than parts of it.
ROUNDING = dict.fromkeys(
    "bailing_hybrid falcon_h1 granitemoehybrid longcat_flash_ngram mamba2 nemotron_h plamo2".split(), 1e-4
)


def untrimmable() -> list[str]:
    """The models with a layer that does not hold every token of a long prompt."""
    return [name for name in runnable() if not all(isinstance(c, WHOLE) for c in leaves(make_cache(outline(name))))]


def ends(length: int) -> set[int]:
    """Where what is fed at once of a prompt ends. Its last token is fed with the answer."""
    return {*range(FED, length - 1, FED), length - 1}


def edited(text: Sequence[int], shared: int) -> list[int]:
    """The first tokens of a text, and one to three others."""
    return [*text[:shared], (text[shared] + 1) % VOCAB, *[7, 9][: shared % 3]]


@dataclass
class Answer:
    prompt: Sequence[int]
    # Of each token, itself and its log probabilities.
    steps: list[Any]
    cache: list[Any]
    taken: Checkpoints
    # The lengths of what was fed at once.
    blocks: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [int(step[0]) for step in self.steps]

    @property
    def rows(self) -> list[mx.array]:
        return [step[1] for step in self.steps]

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.tokens]


# Answers a prompt. It is given the model, the prompt, and options of generate_step.
Way = Callable[..., Any]


def plainly(model: Any, prompt: Sequence[int], **options: Any) -> Any:
    return generate_step(mx.array(prompt), model, **options)


class Prefixes:
    """A model, and the answers of prompts that begin alike."""

    def __init__(self, model: Any, rounding: float = 0.0, **options: Any) -> None:
        # Elsewhere a kernel may sum any part of a prompt in another order.
        self.rounding = rounding if mx.default_device() == mx.cpu else CLOSE
        self.model, self.options = model, options
        self.from_nothing: dict[tuple[int, tuple[int, ...]], Answer] = {}

    def cold(self, prompt: Sequence[int], n: int = 2) -> Answer:
        """The answer from nothing."""
        key = n, tuple(prompt)
        if key not in self.from_nothing:
            self.from_nothing[key] = self.answer(plainly, prompt, n=n)
        return self.from_nothing[key]

    def with_drafts(self, model: Any, prompt: Sequence[int], **options: Any) -> Any:
        """Half of each draft is right."""
        return lookup(model, list(prompt), Partly(self.cold(prompt, ANSWER).text, 0.5), **options)

    def answer(
        self, way: Way, prompt: Sequence[int], cache: list[Any] | None = None, most: int = 0, n: int = ANSWER
    ) -> Answer:
        """The answer to what a cache does not hold of a prompt."""
        cache, taken = make_cache(self.model) if cache is None else cache, Checkpoints(most, len(prompt), 0, PLACES)
        options = {"prompt_cache": cache, "max_tokens": n, "prefill_step_size": FED, "checkpoints": taken}
        with patch.object(Checkpoints, "STEP", STEP), fed(self.model) as blocks:
            return Answer(prompt, list(way(self.model, prompt, **options, **self.options)), cache, taken, blocks)

    def in_parts(self, prompt: Sequence[int], n: int, length: int) -> Answer:
        """From nothing, the first n tokens in the parts in which a prompt of a length and its answer were fed."""
        cache = make_cache(self.model)
        for a, b in pairwise(sorted({0, *(m for m in (*ends(length), *range(length, n)) if m < n), n})):
            self.model(mx.array([prompt[a:b]]), cache=cache)
            if self.options:
                maybe_quantize_kv_cache(cache, **self.options)
            mx.eval([c.state for c in cache])
        return self.answer(plainly, prompt[n:], cache, n=2)

    def off(self, got: Answer, prompt: Sequence[int], n: int, length: int, bound: float) -> float:
        """How far an answer is from that from nothing, where it is farther than a bound also from that in parts."""
        distance = gap(got.rows, self.cold(prompt).rows)
        return distance if distance <= bound else gap(got.rows, self.in_parts(prompt, n, length).rows)

    def wrong(self, stored: LRUPromptCache, answer: Answer, shared: int, bound: float) -> list[str]:
        """What is wrong with the answer to a prompt that shares so many tokens with a text that is stored."""
        prompt, length = edited(answer.text, shared), len(answer.prompt)
        last = max([n for n in answer.taken.taken if n <= shared], default=0)
        (cache, rest), (other, rest_again) = (stored.fetch_nearest_cache("model", prompt) for _ in range(2))
        n = len(prompt) - len(rest)
        if n == last == 0:
            return []
        warm = self.answer(plainly, rest, cache, n=2)
        again = self.answer(plainly, rest_again, other, n=1)
        bound += 0 if n in ends(length) else self.rounding
        off = self.off(warm, prompt, n, length, bound)
        checks = {
            # A cache that can be trimmed there gives more.
            "found": n in (last, shared) and rest_again == rest,
            "tokens": warm.tokens == self.cold(prompt).tokens,
            "log probabilities": off <= bound,
            "used again": gap(warm.rows[:1], again.rows) == 0,
            "fed": sum(warm.blocks) == sum(self.cold(prompt).blocks) - n,
        }
        return [f"{what} of {shared}, {last}: {n} {off:.2g}" for what, holds in checks.items() if not holds]

    def complaints(self, answer: Answer, edits: Iterable[int], bound: float = 0.0) -> list[str]:
        """What is wrong when a text is stored, and is asked for with edits."""
        stored, found = LRUPromptCache(max_checkpoints=MOST), []
        stored.insert_cache("model", answer.text, deepcopy(answer.cache), checkpoints=dict(answer.taken.taken))
        for shared in edits:
            found += self.wrong(stored, answer, shared, bound)
        whole, rest = stored.fetch_nearest_cache("model", answer.text)
        if rest or gap(next_turn(self.model, whole), next_turn(self.model, deepcopy(answer.cache))) > 0:
            found.append("the stored text did not stay as it was")
        return found

    def together(
        self, prompts: dict[float | None, Sequence[int]], most: int = 0, stored: LRUPromptCache | None = None
    ) -> list[Answer]:
        """The answers to prompts that come at the same time, with the share of each draft that is right.

        They go on from what is stored, and are stored.
        """
        # This is found with a pass that is never computed.
        vocab_size_of(self.model)
        batch = BatchGenerator(self.model, max_tokens=ANSWER, prefill_step_size=FED, draft_costs=FREE)
        stored, found = LRUPromptCache(0) if stored is None else stored, []
        for prompt in prompts.values():
            cache, rest = stored.fetch_nearest_cache("model", prompt)
            n = len(prompt) - len(rest)
            found.append(Answer(prompt, [], cache, Checkpoints(most, len(prompt), n, PLACES)))
        planners = [
            None if share is None else Planner(Partly(self.cold(prompt, ANSWER).text, share), K, DraftStats())
            for share, prompt in prompts.items()
        ]
        options = {
            "planners": planners,
            "checkpoints": [one.taken for one in found],
            "caches": [one.cache for one in found],
            "all_tokens": [list(one.prompt[: one.taken.n]) for one in found],
        }
        with patch.object(Checkpoints, "STEP", STEP), fed(self.model) as blocks:
            uids = batch.insert_segments([[list(one.prompt[one.taken.n :])] for one in found], **options)
            rows = dict(zip(uids, found, strict=True))
            while responses := batch.next_generated():
                for response in responses:
                    rows[response.uid].steps.append((response.token, response.logprobs))
                    rows[response.uid].cache = response.prompt_cache or rows[response.uid].cache
        for one in found:
            one.blocks = blocks
            stored.insert_cache("model", one.text, deepcopy(one.cache), checkpoints=dict(one.taken.taken))
        return found


def misplaced(answer: Answer, name: str = "") -> list[str]:
    """What is wrong with the places that have a checkpoint. In the answer a block of a draft may go beyond the step."""
    length, taken, block = len(answer.prompt), sorted(answer.taken.taken), ENDS_ONLY.get(name, K)
    right = ends(length) | {n for n in PLACES if n < length and name not in ENDS_ONLY}
    gaps = [b - a for a, b in pairwise([*(n for n in taken if n >= length - 1), length + ANSWER])]
    checks = {"the prompt": {n for n in taken if n < length} == right, "the answer": max(gaps) <= STEP + block}
    return [f"places in {where}: {taken}" for where, holds in checks.items() if not holds]
