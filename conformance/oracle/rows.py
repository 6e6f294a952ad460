"""A row of a batch is what it is alone: its text, log probabilities, end and cache, and what its parts are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from conformance.doors.batch import CLOSE, VOCAB, Alone, Drawing, Request, Watching, alone, insert
from conformance.drafters import Partly
from conformance.oracle.findings import broken
from conformance.oracle.recorder import gap, next_turn


def prompt_of(length: int) -> list[int]:
    return [(7 * i + 3 * length) % VOCAB for i in range(length)]


class Plain:
    """What plain decoding of a model gives. Each answer is decoded once."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.answer, self.turn = cache(self._answer), cache(self._turn)

    def _answer(self, prompt: tuple[int, ...], n: int, temperature: float = 0, processed: bool = False) -> Alone:
        return alone(self.model, prompt, n, temperature, [Watching()] if processed else [])

    def _turn(self, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> list[mx.array]:
        """The next turn on a cache that holds this prompt and answer."""
        layers = make_prompt_cache(self.model)
        for block in filter(None, (prompt[:-1], *((token,) for token in (*prompt[-1:], *tokens)))):
            self.model(mx.array([block]), cache=layers)
        return next_turn(self.model, layers)

    def ask(
        self, prompt: Sequence[int], n: int, share: float | None = None, temperature: float = 0, processed: bool = False
    ) -> tuple[Request, Alone]:
        """A request for n tokens, and its answer alone. A share of each draft is right; None means no drafts."""
        right = self.answer(tuple(prompt), n, temperature, processed)
        script = None if share is None else Partly([*prompt, *right.tokens], share)
        sampler, processors = Drawing(temperature) if temperature else None, [Watching()] if processed else []
        return Request(prompt, n, script, sampler, processors), right


@dataclass
class Row:
    """A request that a batch serves, and what came of it."""

    about: str
    request: Request
    right: Alone
    # Whether a part of it raises.
    may_fail: bool = False
    tokens: list[int] = field(default_factory=list)
    rows: list[mx.array] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    # The last response.
    last: Any = None

    @property
    def prompt(self) -> list[int]:
        return [*self.request.held, *self.request.prompt]

    def answer(self) -> tuple[list[int], str]:
        """The part of the answer that has to be returned, and the finish reason."""
        right, stop = self.right.tokens[: self.request.max_tokens], list(self.request.stop)
        for n in range(len(stop), len(right) + 1):
            if stop and right[n - len(stop) : n] == stop:
                return right[:n], "stop"
        return right, "length"

    def take(self, response: Any) -> None:
        if self.last is not None:
            self.broken("there are responses after the last one")
        if response.finish_reason is not None:
            self.last = response
        if response.finish_reason != "error":
            self.tokens.append(int(response.token))
            self.rows.append(response.logprobs)
            self.drafted.append(getattr(response, "from_draft", False))

    def broken(self, what: str) -> NoReturn:
        broken(f"{self.about}: {what}")

    def check_text(self) -> None:
        """The tokens that were returned so far are those of the answer."""
        right, _ = self.answer()
        for i, token in enumerate(self.tokens):
            if right[i : i + 1] != [token]:
                self.broken(f"token {i} is {token} instead of {right[i] if i < len(right) else 'an end'}")
        if True in self.drafted and self.request.strategy is None:
            self.broken("it has no drafts, and a token is said to be from one")

    def check_end(self) -> None:
        right, reason = self.answer()
        if self.last.finish_reason == "error":
            if not self.may_fail:
                self.broken(f"it ends with {self.last.error!r}")
            return
        if (n := len(self.tokens)) < len(right) or self.last.finish_reason != reason:
            self.broken(f"it ends with {self.last.finish_reason!r} after {n} tokens, not {reason!r} after {len(right)}")
        if self.last.all_tokens != self.prompt + right:
            self.broken(f"its cache is said to hold {self.last.all_tokens} instead of {self.prompt + right}")
        stats = self.request.stats
        if stats is not None and not self.may_fail and stats.accepted != sum(self.drafted):
            self.broken(f"{stats.accepted} tokens are counted as accepted, {sum(self.drafted)} were")

    def check_what_was_shown(self) -> None:
        """A strategy observed the tokens of the row, and a processor one more with each call."""
        if self.may_fail:
            # After a sampler raised, any token may take the place of the one it did not draw.
            return
        text = self.prompt + self.right.tokens
        seen = getattr(self.request.strategy, "seen", [])
        if seen != text[: len(seen)]:
            self.broken(f"its strategy observed {seen} instead of {text[: len(seen)]}")
        for processor in self.request.processors:
            for i, history in enumerate(getattr(processor, "histories", [])):
                if history != (right := text[: len(self.prompt) + i]):
                    self.broken(f"call {i} of its processor saw {history} instead of {right}")


# Whether a distance of log probabilities is noise. Those of a next turn have a scale of 16, others one of 1.
Near = Callable[[Row, float, int], bool]
# A cache, and the tokens that it holds.
Held = tuple[list[Any], list[int]]


def close(_: Row, distance: float, scale: int) -> bool:
    return distance < CLOSE * scale


class Rows:
    """A batch whose rows are compared with themselves alone when they end, leave or are looked at."""

    def __init__(self, plain: Plain, near: Near = close, **options: Any) -> None:
        self.plain, self.near = plain, near
        self.generator = BatchGenerator(plain.model, **options)
        self.running: dict[int, Row] = {}
        self.n_rows = 0

    def insert(self, request: Request, right: Alone, may_fail: bool = False) -> Row:
        drafted = "no drafts" if request.strategy is None else f"drafts of {request.num_draft_tokens}"
        about = f"row {self.n_rows}, with a prompt of {len(request.prompt)} tokens and {drafted}"
        row = Row(about, request, right, may_fail)
        self.running[insert(self.generator, request)] = row
        self.n_rows += 1
        return row

    def step(self, n: int = 1) -> list[Row]:
        """Returns the rows that came to their end."""
        ended = []
        for response in (one for _ in range(n) for one in self.generator.next()[1]):
            row = self.running[response.uid]
            row.take(response)
            if response.finish_reason is None:
                row.check_text()
                continue
            del self.running[response.uid]
            self.check(row)
            if response.finish_reason != "error":
                ended.append(row)
        return ended

    def check(self, row: Row) -> None:
        row.check_text()
        if row.last is not None:
            row.check_end()
        row.check_what_was_shown()
        if row.rows and not self.near(row, off := gap(row.rows, row.right.rows[: len(row.rows)]), 1):
            row.broken(f"the log probabilities are off by {off:.2g}")
        if row.last is not None and row.last.finish_reason != "error":
            self.check_cache(row, row.last.prompt_cache, row.prompt, row.tokens)

    def check_cache(self, row: Row, layers: list[Any], prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """A cache behaves as if it was fed these tokens alone."""
        right = self.plain.turn(tuple(prompt), tuple(tokens))
        if not self.near(row, off := gap(next_turn(self.plain.model, deepcopy(layers)), right), 16):
            row.broken(f"the next turn on its cache is off by {off:.2g}")

    def check_held(self, row: Row, layers: list[Any], tokens: Sequence[int]) -> Held:
        """A cache of a row that runs holds the prompt, or a part of it, and the tokens that were returned."""
        self.check(row)
        given = row.prompt + row.tokens
        if list(tokens) != (given if row.tokens else given[: len(tokens)]):
            row.broken(f"its cache is said to hold {list(tokens)} instead of {given}")
        self.check_cache(row, layers, tokens, ())
        return layers, list(tokens)

    def extract(self, uid: int) -> Held:
        return self.check_held(self.running[uid], *self.generator.extract_cache([uid])[uid])

    def cancel(self, uid: int) -> Held:
        removed = self.generator.remove([uid], return_prompt_caches=True)
        return self.check_held(self.running.pop(uid), *removed[uid])

    def drop(self, uid: int) -> None:
        self.generator.remove([uid])
        self.check(self.running.pop(uid))

    def finish(self) -> None:
        """Every row ends, in at most as many steps as all have tokens."""
        self.step(sum(len(row.request.prompt) + row.request.max_tokens for row in self.running.values()) + 1)
        for row in self.running.values():
            row.broken("it does not end")
        assert self.generator.next() == ([], []), "there are responses without a request"


def serve(
    plain: Plain,
    requests: Sequence[tuple[Request, Alone]],
    near: Near = close,
    may_fail: Sequence[int] = (),
    **options: Any,
) -> list[Row]:
    """Serve requests that come at the same time. Those of these numbers may fail."""
    batch = Rows(plain, near, **options)
    found = [batch.insert(*one, i in may_fail) for i, one in enumerate(requests)]
    batch.finish()
    return found
