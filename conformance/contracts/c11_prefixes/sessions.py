"""Sessions: each prompt is answered as from nothing, and feeds no more than what lies behind the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, pairwise, takewhile
from typing import Any, NoReturn
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.draft import DraftStats, Planner
from mlx_lm.draft.model import vocab_size_of
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.prefixes import Checkpoints, checkpoint_nbytes

from conformance.drafters import VOCAB, Partly
from conformance.oracle.findings import WHOLE, broken
from conformance.oracle.recorder import fed, gap
from conformance.oracle.rows import CLOSE, FREE
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import K

# The windows and chunks of the tiny configurations have 16 tokens. What is fed at once is longer.
WINDOW, FED, ANSWER, STEP, MOST = 16, 24, 20, 8, 16
PROMPT = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(60)]
# The ends of messages.
PLACES = (10, WINDOW - 1, WINDOW, WINDOW + 1, 35, 55)
# Models that have no state inside of what is fed at once, and the longest block of tokens that they feed again.
ENDS_ONLY = {"deepseek_v41": 16}
# The options that draft an answer, for the prompt with the answer of plain decoding.
Drafts = Callable[[list[int]], dict[str, Any]]


def partly(share: float) -> Drafts:
    """So much of each draft is right."""
    return lambda text: {"draft_strategy": Partly(text, share), "num_draft_tokens": K, **WHOLE}


def ends(length: int, found: int = 0) -> set[int]:
    """Where what is fed at once of a prompt ends. Its last token is fed with the answer."""
    return {*range(found + FED, length - 1, FED), length - 1}


@dataclass
class Answer:
    prompt: Sequence[int]
    cache: list[Any]
    # How many tokens the cache held before.
    found: int
    taken: Checkpoints
    tokens: list[int] = field(default_factory=list)
    rows: list[mx.array] = field(default_factory=list)
    # The lengths of what was fed at once.
    blocks: list[int] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.tokens]


class Session:
    """Prompts to a model, each of which may begin like an earlier one."""

    def __init__(self, name: str, model: Any, rounding: float = 0.0) -> None:
        # Elsewhere a kernel may sum any part of a prompt in another order.
        self.rounding = rounding if mx.default_device() == mx.cpu else CLOSE
        self.name, self.model = name, model
        self.stored = LRUPromptCache(99, max_checkpoints=64)
        # Texts that were read and answered, and the places that a prompt can go back to.
        self.known: list[tuple[list[int], set[int]]] = []
        self.cold = cache(self._cold)
        # These are found with a pass that is never computed, and not counted.
        vocab_size_of(model)
        self.is_trimmed = checkpoint_nbytes(model) == 0
        self.stored.n_own["model"] = len(make_cache(model))

    def _cold(self, prompt: tuple[int, ...], n: int) -> Answer:
        """The answer from nothing."""
        return self.alone(Answer(prompt, make_cache(self.model), 0, Checkpoints()), None, n)

    def begin(self, prompt: Sequence[int]) -> Iterator[Answer]:
        """What is found of a prompt, to be answered without checkpoints, and with them."""
        for most in (0, MOST):
            cache, rest = self.stored.fetch_nearest_cache("model", list(prompt))
            n = len(prompt) - len(rest)
            yield Answer(prompt, cache or make_cache(self.model), n, Checkpoints(most, len(prompt), n, PLACES))

    def alone(self, one: Answer, drafts: Drafts | None, n: int) -> Answer:
        step, options = generate_step, {"prompt_cache": one.cache, "checkpoints": one.taken}
        if drafts is not None:
            step, more = speculative_generate_step, drafts(self.cold(tuple(one.prompt), ANSWER).text)
            getattr(more.get("draft_strategy"), "seen", []).extend(one.prompt[: one.found])
            options |= more
        rest = mx.array(one.prompt[one.found :])
        with patch.object(Checkpoints, "STEP", STEP), fed(self.model) as one.blocks:
            for token, logprobs, *_ in step(rest, self.model, max_tokens=n, prefill_step_size=FED, **options):
                one.tokens.append(int(token))
                one.rows.append(logprobs)
        return one

    def beside(self, rows: list[Answer], drafts: Sequence[Drafts | None]) -> list[Answer]:
        """The same in one batch."""
        batch = BatchGenerator(self.model, max_tokens=ANSWER, prefill_step_size=FED, draft_costs=FREE)
        texts = [self.cold(tuple(one.prompt), ANSWER).text for one in rows]
        made = [make and make(text)["draft_strategy"] for make, text in zip(drafts, texts, strict=True)]
        options = {
            "planners": [one and Planner(one, K, DraftStats()) for one in made],
            "checkpoints": [one.taken for one in rows],
            "caches": [one.cache if one.found else None for one in rows],
            "all_tokens": [list(one.prompt[: one.found]) for one in rows],
        }
        with patch.object(Checkpoints, "STEP", STEP), fed(self.model) as blocks:
            uids = batch.insert_segments([[list(one.prompt[one.found :])] for one in rows], **options)
            of = dict(zip(uids, rows, strict=True))
            for response in chain.from_iterable(iter(batch.next_generated, [])):
                one = of[response.uid]
                one.tokens.append(response.token)
                one.rows.append(response.logprobs)
                one.cache = response.prompt_cache or one.cache
        for one in rows:
            one.blocks = blocks
        return rows

    def ask(self, prompt: Sequence[int], drafts: Drafts | None = None, n: int = ANSWER, keep: bool = True) -> Answer:
        """The answer to a prompt, twice from the same cache: taking checkpoints changes no bit."""
        without, taken = (self.alone(one, drafts, n) for one in self.begin(prompt))
        # What it goes on from was fed in other parts. Drafts from nothing are no question of prefixes.
        bound = 0 if taken.found in ends(len(PROMPT)) else self.rounding
        right = self.cold(tuple(prompt), n)
        self.check(without, taken, right, CLOSE if drafts and not taken.found else bound, self.in_parts)
        if drafts is None and (n_fed := sum(taken.blocks)) != (least := sum(right.blocks) - taken.found):
            self.say(taken, f"feeds {n_fed} tokens instead of {least}")
        if keep:
            self.keep(taken)
        return taken

    def ask_together(self, prompts: Sequence[Sequence[int]], drafts: Sequence[Drafts | None]) -> list[Answer]:
        both = [self.beside(list(rows), drafts) for rows in zip(*map(self.begin, prompts), strict=True)]
        for without, taken in zip(*both, strict=True):
            self.check(without, taken, self.cold(tuple(taken.prompt), ANSWER), CLOSE)
            self.keep(taken)
        return both[1]

    def check(self, without: Answer, taken: Answer, right: Answer, bound: float, other: Any = None) -> None:
        """The tokens and log probabilities from nothing, and checkpoints where they should be."""
        self.check_found(taken)
        if taken.tokens != right.tokens:
            self.say(taken, f"answers {taken.tokens} instead of {right.tokens}")
        off = gap(taken.rows, right.rows)
        if off > bound and other:
            off = gap(taken.rows, other(taken.prompt, taken.found, len(right.tokens)).rows)
        if off > bound:
            self.say(taken, f"its log probabilities are off by {off:.2g}")
        if (taken.tokens, taken.blocks) != (without.tokens, without.blocks) or gap(taken.rows, without.rows):
            self.say(taken, "another answer from the same cache, without checkpoints, differs")
        self.check_places(taken)

    def check_found(self, one: Answer) -> None:
        """It goes on from the last place in what is known of it. A cache that can be trimmed gives more."""
        most = least = 0
        for text, places in self.known:
            # The last token of a prompt is fed in any case.
            shared = takewhile(lambda pair: pair[0] == pair[1], zip(one.prompt[:-1], text, strict=False))
            n = len([*shared])
            most, least = max(most, n), max(least, *(place for place in places if place <= n), 0)
        if not (most if self.is_trimmed else least) <= one.found <= most:
            self.say(one, f"{most} are known, and the last place before that is {least}")

    def check_places(self, one: Answer) -> None:
        """The places of checkpoints. In the answer a block of a draft may go beyond the step."""
        length, places = len(one.prompt), sorted(one.taken.taken)
        right = ends(length, one.found) | (set() if self.name in ENDS_ONLY or self.is_trimmed else set(PLACES))
        wanted, got = (sorted(n for n in ns if one.found < n < length) for ns in (right, places))
        if got != wanted:
            self.say(one, f"has checkpoints at {got} instead of {wanted}")
        behind = [*(n for n in places if n >= length - 1), length + len(one.tokens)]
        longest = max((b - a for a, b in pairwise(behind)), default=0)
        if longest > STEP + ENDS_ONLY.get(self.name, K):
            self.say(one, f"feeds {longest} tokens of the answer without a checkpoint: {behind}")

    def in_parts(self, prompt: Sequence[int], found: int, n: int) -> Answer:
        """From nothing, what is found in the parts in which the first prompt and its answer were fed."""
        cache, length = make_cache(self.model), len(PROMPT)
        for a, b in pairwise(sorted({0, *(m for m in (*ends(length), *range(length, found)) if m < found), found})):
            self.model(mx.array([prompt[a:b]]), cache=cache)
            mx.eval([c.state for c in cache])
        return self.alone(Answer(prompt, cache, found, Checkpoints(0, len(prompt), found)), None, n)

    def say(self, one: Answer, what: str) -> NoReturn:
        broken(f"{self.name}, a prompt of {len(one.prompt)} tokens that goes on from {one.found}: {what}")

    def keep(self, one: Answer) -> None:
        self.known.append((one.text, {*one.taken.taken, len(one.text)}))
        self.stored.insert_cache("model", one.text, deepcopy(one.cache), checkpoints=dict(one.taken.taken))

    def ask_edits(self, text: Sequence[int], places: Iterable[int], drafts: Drafts | None = None) -> list[Answer]:
        """Two tokens of the answers to the first tokens of a text and one to three others."""
        edited = ([*text[:n], (text[n] + 1) % VOCAB, *[7, 9][: n % 3]] for n in places)
        return [self.ask(prompt, drafts, 2, keep=False) for prompt in edited]
