"""A row of a batch is what it is alone: its text, log probabilities, end and cache, and what its parts are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, NoReturn

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step, maybe_quantize_kv_cache
from mlx_lm.models.cache import make_prompt_cache

from conformance.drafters import VOCAB, Partly
from conformance.oracle.findings import broken
from conformance.oracle.recorder import Run, fed, gap, next_turn
from conformance.oracle.run import compare_tokens

# A release has no costs, and batches without drafts are asked of any tree.
try:
    from mlx_lm.draft.costs import BlockCosts
except ImportError:
    FREE: Any = None
else:
    # The costs of blocks in a batch that also has rows without drafts: zero, so that all drafts are fed.
    FREE = BlockCosts((1, 1024), (1.0, 1.0))

DRAFT = 5
# The noise of a forward pass may swap two candidates that are closer than this.
NEAR_TIE = 1e-3
# How far log probabilities may be apart. Noise is far below, a fault far above. Those of a next turn are of another
# scale, and padding, in which attention adds in another order, has that much noise there also where else is none.
CLOSE, PADDED = 6e-4, 1e-5


def prompt_of(length: int) -> list[int]:
    return [(7 * i + 3 * length) % VOCAB for i in range(length)]


class Drawing:
    """A sampler with its own random key. An extra call or a wrong order changes all later draws."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.key = mx.random.key(5)
        # The lead of each token over the second-best one.
        self.margins: list[float] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.key, key = mx.random.split(self.key)
        scores = logprobs + self.temperature * mx.random.gumbel(logprobs.shape, key=key)
        best = mx.sort(scores, axis=-1)[0, -2:]
        self.margins.append((best[1] - best[0]).item())
        return mx.argmax(scores, axis=-1)


class Broken(Exception):
    """The error that a part of a row raises."""


def breaking(function: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Wrap a function so that it raises at call number ``at``, counted from 0."""
    calls = count()

    def called(*args: Any) -> Any:
        if next(calls) == at:
            raise Broken(f"call {at}")
        return function(*args)

    return called


@dataclass(eq=False, kw_only=True)
class Row(Run):
    """A request to a batch, its answer alone, which may be longer, and what the batch gives it."""

    max_tokens: int
    right: Run
    strategy: Any = None
    sampler: Any = None
    processors: Sequence[Any] = ()
    # The stop sequence.
    stop: Sequence[int] = ()
    # The tokens that the cache holds, if it starts from one, and what takes checkpoints of it.
    held: Sequence[int] = ()
    checkpoints: Any = None
    num_draft_tokens: int = DRAFT
    costs: Any = None
    # Whether a part of it raises that it cannot do without.
    may_fail: bool = False
    about: str = ""

    @property
    def given(self) -> list[int]:
        return [*self.held, *self.prompt]

    @property
    def text(self) -> list[int]:
        return [*self.given, *self.tokens]

    @property
    def found(self) -> int:
        return len(self.held)

    def options(self) -> dict[str, Any]:
        """What a batch is told of it. A tree need not know what it does not ask for."""
        options: dict[str, Any] = {"caches": self.cache, "all_tokens": list(self.held), "checkpoints": self.checkpoints}
        options |= {"samplers": self.sampler, "logits_processors": list(self.processors)}
        if self.stop:
            from mlx_lm.generate import StopSequences

            options["stop_sequences"] = StopSequences([self.stop])
        if self.strategy is not None:
            from mlx_lm.draft import DraftStats
            from mlx_lm.draft.options import planner_for

            self.stats = DraftStats()
            options["planners"] = planner_for(self.strategy, self.num_draft_tokens, self.stats, self.costs)
        return {name: [value] for name, value in options.items() if value not in (None, [])}

    def break_part(self, part: str, at: int) -> None:
        """Let its sampler, its processor or a method of its strategy raise at a call, or give what cannot be used."""
        self.may_fail = part in ("sampler", "processor", "shape", "token")
        if part == "sampler":
            self.sampler = breaking(self.sampler or Drawing(0), at)
        elif part == "processor":
            self.processors = [*self.processors, breaking(lambda _, logits: logits, at)]
        elif part == "shape":
            self.processors = [lambda _, logits: logits[:, 1:]]
        elif part == "token":
            # The pass that takes it is under way before it is known, and must not read beside the weights.
            self.sampler = lambda _: mx.array([(-1, VOCAB, 1 << 40, 2.0)[at % 4]])
        else:
            setattr(self.strategy, part, breaking(getattr(self.strategy, part), at))

    def answer(self) -> tuple[list[int], str]:
        """The part of the answer that has to be returned, and the finish reason."""
        right, stop = self.right.tokens[: self.max_tokens], list(self.stop)
        for n in range(len(stop), len(right) + 1):
            if stop and right[n - len(stop) : n] == stop:
                return right[:n], "stop"
        return right, "length"

    def broken(self, what: str) -> NoReturn:
        broken(f"{self.about}: {what}")

    def check(self, near: float) -> None:
        """It is the answer, as far as it came, and so is what its parts were shown."""
        (right, reason), n, last = self.answer(), len(self.tokens), self.last
        so_far = Run(tokens=right[:n], rows=self.right.rows[:n])
        compare_tokens(self, so_far, f"{self.about}: ", near)
        if True in self.drafted and self.strategy is None:
            self.broken("it has no drafts, and a token is said to be from one")
        if last is not None and last.finish_reason != "error":
            text = [*self.given, *right]
            if n < len(right) or last.finish_reason != reason:
                self.broken(f"it ends with {last.finish_reason!r} after {n} tokens, not {reason!r} after {len(right)}")
            if last.all_tokens != text:
                self.broken(f"its cache is said to hold {last.all_tokens} instead of {text}")
        elif last is not None and not self.may_fail:
            self.broken(f"it ends with {last.error!r}")
        # After a sampler raised, any token may take the place of the one it did not draw.
        if not self.may_fail:
            self.check_what_was_shown()

    def check_what_was_shown(self) -> None:
        """A strategy observed the tokens of the row, and a processor one more with each call."""
        start, text = len(self.given), [*self.given, *self.right.tokens]
        seen = getattr(self.strategy, "seen", [])
        if seen != text[: len(seen)]:
            self.broken(f"its strategy observed {seen} instead of {text[: len(seen)]}")
        for processor in self.processors:
            for i, history in enumerate(getattr(processor, "histories", [])):
                if history != text[: start + i]:
                    self.broken(f"call {i} of its processor saw {history} instead of {text[: start + i]}")
        if self.last is not None and self.stats is not None and self.stats.accepted != sum(self.drafted):
            self.broken(f"{self.stats.accepted} tokens are counted as accepted, {sum(self.drafted)} were")


class Plain:
    """What plain decoding of a model gives. Each answer is decoded once."""

    def __init__(self, model: Any, **options: Any) -> None:
        self.model, self.options = model, options
        self.answer, self.after = cache(self._answer), cache(self._after)

    def _answer(self, prompt: tuple[int, ...], n: int, temperature: float = 0, processor: Any = None) -> Run:
        drawing = Drawing(temperature)
        options = {"sampler": drawing, "logits_processors": [processor()] if processor else None} | self.options
        return Run(list(prompt), margins=drawing.margins).loop(generate_step, self.model, n, **options)

    def _after(self, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> list[mx.array]:
        """The next turn on a cache that was fed a prompt and these tokens."""
        layers = make_prompt_cache(self.model)
        for block in filter(None, (prompt[:-1], prompt[-1:], *([token] for token in tokens))):
            self.model(mx.array([block]), cache=layers)
            if "kv_bits" in self.options:
                maybe_quantize_kv_cache(layers, **self.options)
        return next_turn(self.model, layers)

    def off(self, layers: list[Any], prompt: Sequence[int], tokens: Sequence[int]) -> float:
        """How far what follows on a cache is from what follows on one that was fed these tokens alone."""
        return gap(next_turn(self.model, deepcopy(layers)), self.after(tuple(prompt), tuple(tokens)))

    def ask(
        self,
        prompt: Sequence[int],
        n: int,
        share: float | None = None,
        temperature: float = 0,
        processor: Callable[[], Any] | None = None,
        held: Sequence[int] = (),
        **more: Any,
    ) -> Row:
        """A row of n tokens. A share of each draft is right; with None it has no drafts, or those of its strategy."""
        right = self.answer((*held, *prompt), n, temperature, processor)
        made: dict[str, Any] = {"sampler": Drawing(temperature)} if temperature else {}
        if share is not None:
            made["strategy"] = Partly(right.text, share)
        if processor is not None:
            made["processors"] = [processor()]
        return Row(prompt=list(prompt), held=held, max_tokens=n, right=right, **made | more)


class Rows:
    """A batch whose rows are compared with themselves alone when they end, leave or are looked at."""

    def __init__(self, plain: Plain, near: float = CLOSE, **options: Any) -> None:
        self.plain, self.near = plain, near
        self.generator = BatchGenerator(plain.model, **options)
        self.running: dict[int, Row] = {}
        self.n_rows, self.blocks = 0, list[int]()

    def insert(self, *rows: Row) -> None:
        for row in rows:
            # Only the series takes checkpoints, and that only with segments.
            insert: Any = self.generator.insert if row.checkpoints is None else self.generator.insert_segments
            prompt = row.prompt if row.checkpoints is None else [row.prompt]
            (uid,) = insert([prompt], [row.max_tokens], **row.options())
            drafts = "no drafts" if row.strategy is None else f"drafts of {row.num_draft_tokens}"
            row.about = row.about or f"row {self.n_rows}, with a prompt of {len(row.prompt)} tokens and {drafts}"
            self.running[uid], row.blocks = row, self.blocks
            self.n_rows += 1

    def step(self, n: int = 1) -> list[Row]:
        """Returns the rows that came to their end."""
        ended = []
        for _ in range(n):
            with fed(self.plain.model) as blocks:
                responses = self.generator.next()[1]
            self.blocks += blocks
            for response in responses:
                row = self.running[response.uid]
                row.take([response])
                if row.last is None:
                    continue
                del self.running[response.uid]
                row.check(self.near)
                if response.finish_reason != "error":
                    row.cache = response.prompt_cache
                    self.check_cache(row, row.cache, row.given, row.tokens)
                    ended.append(row)
        return ended

    def check_cache(self, row: Row, layers: list[Any], prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """A cache behaves as if it was fed these tokens alone."""
        if (off := self.plain.off(layers, prompt, tokens)) > max(16 * self.near, PADDED):
            row.broken(f"the next turn on its cache is off by {off:.2g}")

    def look(self, uid: int, how: str) -> list[tuple[list[Any], list[int]]]:
        """The cache of a row that goes on or is cancelled, and the tokens that it holds; or drop the row."""
        row = self.running[uid]
        if how == "extract":
            found = self.generator.extract_cache([uid])
        else:
            found = self.generator.remove([uid], return_prompt_caches=how == "cancel")
            del self.running[uid]
        row.check(self.near)
        if how == "drop":
            return []
        layers, tokens = found[uid]
        # While the prompt is read, it is a part of that.
        if list(tokens) != (row.text if row.tokens else row.text[: len(tokens)]):
            row.broken(f"its cache is said to hold {list(tokens)} instead of {row.text}")
        self.check_cache(row, layers, tokens, ())
        return [(layers, list(tokens))]

    def finish(self, *rows: Row) -> None:
        """Every row ends, and those that join now, in at most as many steps as all have tokens."""
        self.insert(*rows)
        self.step(sum(len(row.prompt) + row.max_tokens for row in self.running.values()) + 1)
        for row in self.running.values():
            row.broken("it does not end")
        assert self.generator.next() == ([], []), "there are responses without a request"
