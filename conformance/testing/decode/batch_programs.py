"""Random programs on a batch with drafts and a whole model: requests come, are cancelled, and reuse caches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from mlx_lm.generate import BatchGenerator

from conformance.caches.machines import PROFILE
from conformance.doors.batch import (
    CLOSE,
    FREE,
    Alone,
    Drawing,
    Request,
    Watching,
    break_part,
    holds,
    insert,
    prompt_of,
    right_of,
    until,
)
from conformance.drafters import Partly
from conformance.oracle.recorder import gap
from conformance.subjects.families import model_of

# Growing caches, sliding windows, gated delta, state space, and lists of caches, with and without a recurrent one.
FAMILIES = ["llama", "gemma3_text", "qwen3_next", "mamba2", "falcon_h1", "recurrent_gemma", "deepseek_v32"]
# A program of a whole model takes longer than one of a cache.
PROGRAMS = PROFILE if PROFILE.max_examples > 100 else settings(parent=PROFILE, max_examples=8)
ROWS, LONGEST = 4, 14
PROMPTS = st.sampled_from([prompt_of(n) for n in (1, 2, 6, 21)])
# The part that raises, if any, and at which call.
BREAKS = st.sampled_from([None] * 6 + ["sampler", "processor", "propose", "observe", "accept"])


@dataclass
class Row:
    """A request that is being served."""

    request: Request
    right: Alone
    # The right answer, and the reason of its end.
    answer: list[int]
    reason: str
    may_fail: bool
    got: list[int] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        return [*self.request.held, *self.request.prompt]

    @property
    def text(self) -> list[int]:
        return self.prompt + self.right.tokens

    def check_what_was_shown(self) -> None:
        """Check that a strategy observed the tokens of the row, and a processor one more with each call."""
        if self.may_fail:
            # After a sampler raised, any token may take the place of the one it did not draw.
            return
        if self.request.strategy is not None:
            seen = self.request.strategy.seen
            assert seen == self.text[: len(seen)]
        for processor in self.request.processors:
            histories = getattr(processor, "histories", [])
            assert histories == [self.text[: len(self.prompt) + i] for i in range(len(histories))]

    def check(self, response: Any) -> None:
        n = len(self.got)
        self.got.append(response.token)
        assert self.got == self.answer[: n + 1]
        assert gap([response.logprobs], self.right.rows[n : n + 1]) < CLOSE
        assert response.finish_reason == (self.reason if self.got == self.answer else None)
        assert response.from_draft <= (self.request.strategy is not None)
        self.check_what_was_shown()


class Programs(RuleBasedStateMachine):
    family: str

    @initialize(prefill=st.sampled_from([3, 2048]))
    def start(self, prefill: int) -> None:
        model = model_of(self.family).model
        self.generator = BatchGenerator(model, prefill_step_size=prefill, draft_costs=FREE, rows_fail_alone=True)
        self.rows: dict[int, Row] = {}
        # Returned caches, each with the tokens that it holds.
        self.kept: list[tuple[list[Any], list[int]]] = []

    def keep(self, layers: list[Any], tokens: Sequence[int]) -> None:
        """Keep the cache of a row for later. It must behave as if it was fed its tokens alone."""
        assert holds(self.family, copy.deepcopy(layers), tokens)
        self.kept.append((layers, list(tokens)))

    def ask(self, request: Request, data: st.DataObject) -> None:
        """Insert a request with random drafts, a random end and a random fault."""
        temperature, processed = data.draw(st.sampled_from([(0.0, False), (0.0, True), (1.0, False), (1.0, True)]))
        # Two tokens longer than any request.
        right = right_of(self.family, (*request.held, *request.prompt), LONGEST + 2, temperature, processed)
        request.max_tokens = data.draw(st.integers(1, LONGEST))
        if right.sure < request.max_tokens:
            return
        if temperature:
            request.sampler = Drawing(temperature)
        if processed:
            request.processors = [Watching()]
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, request.max_tokens - 1))
            request.stop = right.tokens[start : start + data.draw(st.integers(1, 3))]
        answer, reason = until(right.tokens, request.max_tokens, request.stop)
        if (share := data.draw(st.sampled_from([None, 0.0, 0.5, 1.0, 1.0]))) is not None:
            request.strategy = Partly([*request.held, *request.prompt, *right.tokens], share)
            request.num_draft_tokens = data.draw(st.integers(1, 7))
            request.costs = data.draw(st.sampled_from([None, FREE]))
        part = data.draw(BREAKS)
        if part in ("propose", "observe", "accept") and request.strategy is None:
            part = None
        if part is not None:
            break_part(request, part, data.draw(st.integers(0, 4)))
        self.rows[insert(self.generator, request)] = Row(request, right, answer, reason, part is not None)

    @precondition(lambda self: len(self.rows) < ROWS)
    @rule(prompt=PROMPTS, data=st.data())
    def insert(self, prompt: list[int], data: st.DataObject) -> None:
        self.ask(Request(prompt, 0), data)

    @precondition(lambda self: len(self.rows) < ROWS and self.kept)
    @rule(prompt=PROMPTS, data=st.data())
    def go_on(self, prompt: list[int], data: st.DataObject) -> None:
        """Insert a request that goes on from a returned cache. That cache must not change."""
        layers, tokens = data.draw(st.sampled_from(self.kept))
        self.ask(Request(prompt, 0, cache=layers, held=tokens), data)

    def steps(self, n: int) -> None:
        for _ in range(n):
            for response in self.generator.next()[1]:
                self.take(response)

    def take(self, response: Any) -> None:
        row = self.rows[response.uid]
        if response.finish_reason == "error":
            assert row.may_fail
        else:
            row.check(response)
        if response.finish_reason is not None:
            del self.rows[response.uid]
            if response.finish_reason != "error":
                assert response.all_tokens == row.prompt + row.answer
                self.keep(response.prompt_cache, response.all_tokens)

    @precondition(lambda self: self.rows)
    @rule(n=st.integers(1, 3))
    def step(self, n: int) -> None:
        self.steps(n)

    def held_by(self, uid: int, layers: list[Any], tokens: Sequence[int]) -> None:
        """A cache that is extracted while a row runs holds the prompt, or a part of it, and the returned tokens."""
        row = self.rows[uid]
        given = row.prompt + row.got
        assert list(tokens) == (given if row.got else given[: len(tokens)])
        self.keep(layers, tokens)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def extract(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.rows)))
        layers, tokens = self.generator.extract_cache([uid])[uid]
        self.held_by(uid, layers, tokens)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), with_cache=st.booleans())
    def cancel(self, data: st.DataObject, with_cache: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.rows)))
        removed = self.generator.remove([uid], return_prompt_caches=with_cache)
        assert list(removed) == [uid] * with_cache
        if with_cache:
            self.held_by(uid, *removed[uid])
        del self.rows[uid]

    @precondition(lambda self: self.rows)
    @rule()
    def finish(self) -> None:
        """Every request ends, in at most as many steps as it has tokens and prompt parts."""
        self.steps(2 * LONGEST + 21)
        assert not self.rows
        assert self.generator.next() == ([], [])

    def teardown(self) -> None:
        if hasattr(self, "generator"):
            self.generator.close()


def run_programs(family: str, profile: settings = PROGRAMS) -> None:
    run_state_machine_as_test(type("Programs", (Programs,), {"family": family}), settings=profile)
