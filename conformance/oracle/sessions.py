"""Sessions: each prompt is answered as from nothing, and feeds no more than what lies behind the last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import pairwise, takewhile
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.draft.model import vocab_size_of
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.prefixes import Checkpoints, checkpoint_nbytes

from conformance.drafters import VOCAB, Partly
from conformance.oracle.findings import WHOLE
from conformance.oracle.recorder import Run, gap
from conformance.oracle.rows import CLOSE, FREE, Plain, Row, Rows
from conformance.oracle.run import compare_tokens
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import WINDOW, K

# What is fed at once is longer than the windows and chunks of the tiny configurations.
FED, ANSWER, STEP, N_CHECKPOINTS = 24, 20, 8, 16
PROMPT = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(60)]
# The ends of messages.
PLACES = (10, WINDOW - 1, WINDOW, WINDOW + 1, 35, 55)
# Models that have no state inside of what is fed at once, and the longest block of tokens that they feed again.
ENDS_ONLY = {"deepseek_v41": 16}
# The options that draft an answer, for the prompt with the answer of plain decoding.
Drafting = Callable[[list[int]], dict[str, Any]]


def partly(share: float) -> Drafting:
    """So much of each draft is right."""
    return lambda text: {"draft_strategy": Partly(text, share), "num_draft_tokens": K, **WHOLE}


def ends(length: int, found: int = 0) -> set[int]:
    """Where what is fed at once of a prompt ends. Its last token is fed with the answer."""
    return {*range(found + FED, length - 1, FED), length - 1}


class Session:
    """Prompts to a model, each of which may begin like an earlier one."""

    def __init__(self, name: str, model: Any, rounding: float = 0.0) -> None:
        # Elsewhere a kernel may sum any part of a prompt in another order.
        self.rounding = rounding if mx.default_device() == mx.cpu else CLOSE
        self.name, self.model, self.plain = name, model, Plain(model, prefill_step_size=FED)
        self.stored = LRUPromptCache(99, max_checkpoints=64)
        # Texts that were read and answered, and the places that a prompt can go back to.
        self.known: list[tuple[list[int], set[int]]] = []
        # These are found with a pass that is never computed, and not counted.
        vocab_size_of(model)
        self.is_trimmed = checkpoint_nbytes(model) == 0
        self.stored.n_own["model"] = len(make_cache(model))

    def cold(self, prompt: Sequence[int], n: int = ANSWER) -> Run:
        """The answer from nothing."""
        return self.plain.answer(tuple(prompt), n)

    def row(self, prompt: Sequence[int], found: int, cache: list[Any], n: int, most: int = 0) -> Row:
        row = self.plain.ask(prompt[found:], n, held=prompt[:found], cache=cache, num_draft_tokens=K)
        row.checkpoints = Checkpoints(most, len(prompt), found, PLACES)
        row.about = f"{self.name}, a prompt of {len(prompt)} tokens that goes on from {found}"
        return row

    def begin(self, prompt: Sequence[int], n: int = ANSWER) -> Iterator[Row]:
        """What is found of a prompt, to be answered without checkpoints, and with them."""
        for most in (0, N_CHECKPOINTS):
            cache, rest = self.stored.fetch_nearest_cache("model", list(prompt))
            yield self.row(prompt, len(prompt) - len(rest), cache or [], n, most)

    def alone(self, row: Row, drafts: Drafting | None = None) -> Row:
        step, options = generate_step, dict[str, Any]()
        if drafts is not None:
            step, options = speculative_generate_step, drafts(self.cold(row.given).text)
            getattr(options.get("draft_strategy"), "seen", []).extend(row.held)
        row.cache = row.cache or make_cache(self.model)
        options |= {"checkpoints": row.checkpoints, "prefill_step_size": FED}
        with patch.object(Checkpoints, "STEP", STEP):
            return row.loop(step, self.model, row.max_tokens, **options)

    def beside(self, rows: Sequence[Row], drafts: Sequence[Drafting | None]) -> Sequence[Row]:
        """The same in one batch."""
        batch = Rows(self.plain, prefill_step_size=FED, draft_costs=FREE)
        for row, make in zip(rows, drafts, strict=True):
            row.strategy = make and make(row.right.text)["draft_strategy"]
        with patch.object(Checkpoints, "STEP", STEP):
            batch.finish(*rows)
        return rows

    def ask(self, prompt: Sequence[int], drafts: Drafting | None = None, n: int = ANSWER, keep: bool = True) -> Row:
        """The answer to a prompt, twice from the same cache."""
        without, taken = (self.alone(row, drafts) for row in self.begin(prompt, n))
        self.check_found(taken)
        # What it goes on from was fed in other parts. Drafting from nothing are no question of prefixes.
        bound = CLOSE if drafts and not taken.held else 0 if taken.found in ends(len(PROMPT)) else self.rounding
        right = taken.right
        if taken.tokens == right.tokens and gap(taken.rows, right.rows) > bound:
            right = self.in_parts(taken)
        compare_tokens(taken, right, f"{taken.about}: ", bound)
        if drafts is None and (n_fed := sum(taken.blocks)) != (least := len(taken.prompt) + n):
            taken.broken(f"feeds {n_fed} tokens instead of {least}")
        self.check_checkpoints(without, taken)
        if keep:
            self.keep(taken)
        return taken

    def ask_together(self, prompts: Sequence[Sequence[int]], drafts: Sequence[Drafting | None]) -> Sequence[Row]:
        without, taken = (self.beside(rows, drafts) for rows in zip(*map(self.begin, prompts), strict=True))
        for row in taken:
            self.check_found(row)
        for rows in zip(without, taken, strict=True):
            self.check_checkpoints(*rows)
            self.keep(rows[1])
        return taken

    def check_found(self, row: Row) -> None:
        """It goes on from the last place in what is known of it. A cache that can be trimmed gives more."""
        most = least = 0
        for text, places in self.known:
            # The last token of a prompt is fed in any case.
            shared = takewhile(lambda pair: pair[0] == pair[1], zip(row.given[:-1], text, strict=False))
            n = len([*shared])
            most, least = max(most, n), max(least, *(place for place in places if place <= n), 0)
        if not (most if self.is_trimmed else least) <= row.found <= most:
            row.broken(f"{most} are known, and the last place before that is {least}")

    def check_checkpoints(self, without: Row, taken: Row) -> None:
        """They change no bit, and are at their places. In the answer a block of a draft may go beyond the step."""
        if (taken.tokens, taken.blocks) != (without.tokens, without.blocks) or gap(taken.rows, without.rows):
            taken.broken("another answer from the same cache, without checkpoints, differs")
        length, places = len(taken.given), sorted(taken.checkpoints.taken)
        right = ends(length, taken.found) | (set() if self.name in ENDS_ONLY or self.is_trimmed else set(PLACES))
        wanted, got = (sorted(n for n in ns if taken.found < n < length) for ns in (right, places))
        if got != wanted:
            taken.broken(f"has checkpoints at {got} instead of {wanted}")
        behind = [*(n for n in places if n >= length - 1), len(taken.text)]
        longest = max((b - a for a, b in pairwise(behind)), default=0)
        if longest > STEP + ENDS_ONLY.get(self.name, K):
            taken.broken(f"feeds {longest} tokens of the answer without a checkpoint: {behind}")

    def in_parts(self, row: Row) -> Row:
        """From nothing, what is found in the parts in which the first prompt and its answer were fed."""
        cache, length, found = make_cache(self.model), len(PROMPT), row.found
        for a, b in pairwise(sorted({0, *(m for m in (*ends(length), *range(length, found)) if m < found), found})):
            self.model(mx.array([row.held[a:b]]), cache=cache)
            mx.eval([c.state for c in cache])
        return self.alone(self.row(row.given, found, cache, row.max_tokens))

    def keep(self, row: Row) -> None:
        taken = dict(row.checkpoints.taken)
        self.known.append((row.text, {*taken, len(row.text)}))
        self.stored.insert_cache("model", row.text, deepcopy(row.cache), checkpoints=taken)

    def ask_edits(self, text: Sequence[int], places: Iterable[int], drafts: Drafting | None = None) -> list[Row]:
        """Two tokens of the answers to the first tokens of a text and one to three others."""
        edited = ([*text[:n], (text[n] + 1) % VOCAB, *[7, 9][: n % 3]] for n in places)
        return [self.ask(prompt, drafts, 2, keep=False) for prompt in edited]
