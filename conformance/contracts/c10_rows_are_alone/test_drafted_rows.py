"""Rows of a batch with drafts decode as they do alone, whatever the others draft, and however a row ends.

The models are one for each kind of cache: growing ones, sliding windows, gated delta, state space, and lists of caches.
CONFORMANCE_PROFILE=full runs 2000 random programs on each.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from mlx_lm.draft import batch_planner

from conformance.doors.batch import DRAFT, FREE, Alone, Broken, Request, break_part
from conformance.oracle.rows import Plain, Rows, prompt_of, serve
from conformance.subjects.families import model_of

pytestmark = pytest.mark.usefixtures("uncompiled")
FAMILIES = ["llama", "gemma3_text", "qwen3_next", "mamba2", "falcon_h1", "recurrent_gemma", "deepseek_v32"]
PARTS = ["sampler", "processor", "propose", "observe", "accept"]
Asked = tuple[Request, Alone]


@cache
def plain(family: str) -> Plain:
    return Plain(model_of(family).model)


def ask(family: str, length: int, n: int, *how: Any, **more: Any) -> Asked:
    """A request, and its answer alone, which may be longer."""
    request, right = plain(family).ask(prompt_of(length), max(n, 30), *how)
    for name, value in ({"max_tokens": n} | more).items():
        setattr(request, name, value)
    return request, right


def others(family: str) -> list[Asked]:
    """A row that accepts half of its drafts, one that accepts nothing, and a sampled one without drafts."""
    return [ask(family, 21, 20, 0.5), ask(family, 6, 20, 0.0), ask(family, 9, 20, None, 1.0)]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_end_inside_a_block(family: str) -> None:
    """Rows that end at every place of the first blocks, by a limit or a stop sequence."""
    requests = []
    for n in range(1, 2 * DRAFT):
        limited, right = ask(family, 3 + n, n, 1.0)
        stopped, _ = ask(family, 3 + n, 30, 1.0, stop=right.tokens[max(n - 2, 0) : n])
        requests += [(limited, right), (stopped, right)]
    serve(plain(family), requests, draft_costs=FREE)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cancelled_row(family: str) -> None:
    """A row is cancelled after each of the first steps, and another is looked at, mostly with a block under way."""
    for n_steps in range(1, 6):
        batch = Rows(plain(family), draft_costs=FREE)
        for request, right in others(family):
            batch.insert(request, right)
        batch.step(n_steps)
        batch.drop(max(batch.running))
        batch.step()
        batch.extract(min(batch.running))
        batch.finish()


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_are_alone(family: str) -> None:
    """Each sampler and logits processor runs once for each token, in order, and sees only its row."""
    kinds = product((None, 0.0, 0.5, 1.0), (0.0, 1.0), (False, True))
    requests = [ask(family, 1 + i, 12, *kind) for i, kind in enumerate(kinds)]
    serve(plain(family), requests, draft_costs=FREE)
    for request, _ in requests:
        for processor in request.processors:
            assert len(processor.histories) >= 12, "a processor was not called for every token"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_blocks(family: str) -> None:
    """Drafts of a hundred tokens: one fully right, one fully wrong."""
    long = [ask(family, 5, n, share, num_draft_tokens=100) for n, share in ((100, 1.0), (6, 0.0))]
    for row in serve(plain(family), long):
        assert row.request.stats.reason is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_that_cannot_be_trimmed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafting stops with a reason, and the drafted block leaves no trace."""
    monkeypatch.setattr(batch_planner, "can_trim_prompt_cache", lambda *_: False)
    for row in serve(plain(family), others(family), draft_costs=FREE):
        assert True not in row.drafted
        assert row.request.stats is None or row.request.stats.reason == "the cache cannot be trimmed by row"


@pytest.mark.parametrize(("n_broken", "at"), [(1, 0), (1, 1), (1, 4), (3, 2)])
@pytest.mark.parametrize("part", PARTS)
def test_a_failure_is_alone(part: str, at: int, n_broken: int) -> None:
    """A row whose sampler, processor or strategy raises ends with that error. The others, or the next, go on."""
    batch = Rows(plain("llama"), draft_costs=FREE, rows_fail_alone=True)
    broken = [ask("llama", 4, 40, 1.0) for _ in range(n_broken)]
    for request, _ in broken:
        break_part(request, part, at)
    rows = [batch.insert(*one, may_fail=True) for one in broken]
    for one in others("llama") if n_broken == 1 else []:
        batch.insert(*one)
    batch.finish()
    for row in rows:
        assert row.last.finish_reason == "error", f"{row.about}: its {part} raised, and it went on"
        assert Broken in (type(row.last.error), type(row.last.error.__cause__))
        assert part not in ("sampler", "processor") or len(row.tokens) <= at
    for one in others("llama"):
        batch.insert(*one)
    batch.finish()


@pytest.mark.parametrize("part", ["sampler", "processor"])
def test_a_failure_behind_the_last_token(part: str) -> None:
    """The pass that feeds the last token draws one more token, which is not used."""
    late = ask("llama", 4, 3)
    break_part(late[0], part, 3)
    serve(plain("llama"), [late, others("llama")[0]], draft_costs=FREE, rows_fail_alone=True)


FULL = os.environ.get("CONFORMANCE_PROFILE") == "full"
# Shrinking a failing program of a whole model takes minutes, so only the full profile does it.
PROGRAMS = settings(
    max_examples=2000 if FULL else 8,
    derandomize=not FULL,
    phases=list(Phase) if FULL else [Phase.generate],
    stateful_step_count=25,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck) if FULL else (),
)
LONGEST = 14
PROMPTS = st.sampled_from([prompt_of(n) for n in (1, 2, 6, 21)])


class Programs(RuleBasedStateMachine):
    family: str

    @initialize(prefill=st.sampled_from([3, 2048]))
    def start(self, prefill: int) -> None:
        self.batch = Rows(plain(self.family), prefill_step_size=prefill, draft_costs=FREE, rows_fail_alone=True)
        # Returned caches, each with the tokens that it holds.
        self.kept: list[tuple[list[Any], list[int]]] = []

    def is_full(self) -> bool:
        return len(self.batch.running) == 4

    def ask(self, prompt: list[int], data: st.DataObject, layers: list[Any] | None, held: list[int]) -> None:
        """Insert a request with random drafts, a random end and a random fault."""
        # Two tokens longer than any request.
        how = data.draw(st.sampled_from([None, 0.0, 0.5, 1.0, 1.0])), data.draw(st.sampled_from([0.0, 1.0]))
        request, right = plain(self.family).ask([*held, *prompt], LONGEST + 2, *how, data.draw(st.booleans()))
        request.prompt, request.cache, request.held = prompt, layers, held
        request.max_tokens = data.draw(st.integers(1, LONGEST))
        if right.sure < request.max_tokens:
            return
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, request.max_tokens - 1))
            request.stop = right.tokens[start : start + data.draw(st.integers(1, 3))]
        request.num_draft_tokens = data.draw(st.integers(1, 7))
        request.costs = data.draw(st.sampled_from([None, FREE]))
        part = data.draw(st.sampled_from([None] * 6 + PARTS))
        may_fail = part in ("sampler", "processor") or (part is not None and request.strategy is not None)
        if may_fail:
            break_part(request, part, data.draw(st.integers(0, 4)))
        self.batch.insert(request, right, may_fail)

    @precondition(lambda self: not self.is_full())
    @rule(prompt=PROMPTS, data=st.data())
    def insert(self, prompt: list[int], data: st.DataObject) -> None:
        self.ask(prompt, data, None, [])

    @precondition(lambda self: not self.is_full() and self.kept)
    @rule(prompt=PROMPTS, data=st.data())
    def go_on(self, prompt: list[int], data: st.DataObject) -> None:
        """Insert a request that goes on from a returned cache. That cache must not change."""
        self.ask(prompt, data, *data.draw(st.sampled_from(self.kept)))

    @precondition(lambda self: self.batch.running)
    @rule(n=st.integers(1, 6))
    def step(self, n: int) -> None:
        self.kept += [(row.last.prompt_cache, row.last.all_tokens) for row in self.batch.step(n)]

    @precondition(lambda self: self.batch.running)
    @rule(data=st.data(), way=st.sampled_from([Rows.extract, Rows.cancel, Rows.drop]))
    def look(self, data: st.DataObject, way: Any) -> None:
        """Take the cache of a row that runs and goes on, or of one that is cancelled, or cancel one without."""
        running = self.batch.running
        # Most look at a row that is decoded, if there is one.
        uids = [uid for uid, row in running.items() if row.tokens] or list(running)
        if held := way(self.batch, data.draw(st.sampled_from(uids))):
            self.kept.append(held)

    @precondition(lambda self: self.batch.running)
    @rule()
    def finish(self) -> None:
        self.batch.finish()

    def teardown(self) -> None:
        if hasattr(self, "batch"):
            self.batch.generator.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_programs(family: str) -> None:
    run_state_machine_as_test(type("Programs", (Programs,), {"family": family}), settings=PROGRAMS)
