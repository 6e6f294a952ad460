"""Rows of a batch with drafts decode as they do alone, whatever the others draft, and however a row ends.

The models are one for each kind of cache: growing ones, sliding windows, gated delta, and lists of caches.
CONFORMANCE_PROFILE=full runs 2000 random programs on each, and on three more models.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx

# Trees without it batch no drafts.
import mlx_lm.draft  # noqa: F401
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from mlx_lm.generate import BatchGenerator, generation_stream
from mlx_lm.sample_utils import greedy_sampler

from conformance.drafters import VOCAB, AtDepth, Wrong
from conformance.oracle.findings import broken, not_shown
from conformance.oracle.profiles import FULL, PROFILE
from conformance.oracle.rows import DRAFT, FREE, NEAR_TIE, Broken, Plain, Row, Rows, prompt_of
from conformance.oracle.run import Shifting
from conformance.subjects.decoded import FAMILIES, FOLLOWER, model_of, unsteered

pytestmark = pytest.mark.usefixtures("uncompiled")
MODELS = ["llama", "gemma3_text", "qwen3_next", "falcon_h1"]
MODELS += ["mamba2", "recurrent_gemma", "deepseek_v32"] if FULL else []
OF_A_STRATEGY = ["propose", "observe", "accept"]
CAN_FAIL = ["sampler", "processor", "shape", "token", *OF_A_STRATEGY]
# How many rows of a batch fail, and at which call.
FAILING = ((1, 0), (1, 1), (1, 3), (3, 2))
# Each place gives another token that cannot be one.
FAILURES = [
    (part, *how)
    for i, part in enumerate(CAN_FAIL)
    for how in (FAILING if FULL or part == "token" else FAILING[i % 2 :: 2])
]
LONGEST = 14
PROMPTS = st.sampled_from([prompt_of(n) for n in (1, 2, 6, 21)])


@cache
def plain(family: str) -> Plain:
    return Plain(unsteered(family))


def others(family: str) -> list[Row]:
    """A row that accepts half of its drafts, one that accepts nothing, and a sampled one without drafts."""
    ask = plain(family).ask
    return [ask(prompt_of(21), 20, 0.5), ask(prompt_of(6), 20, 0.0), ask(prompt_of(9), 20, None, 1.0, Shifting)]


class Programs(RuleBasedStateMachine):
    family: str

    @initialize(prefill=st.sampled_from([3, 2048]))
    def start(self, prefill: int) -> None:
        self.batch = Rows(plain(self.family), prefill_step_size=prefill, draft_costs=FREE, rows_fail_alone=True)
        # Returned caches, each with the tokens that it holds.
        self.kept: list[tuple[list[Any], list[int]]] = []

    @precondition(lambda self: len(self.batch.running) < 4)
    @rule(prompt=PROMPTS, data=st.data())
    def insert(self, prompt: list[int], data: st.DataObject) -> None:
        """A request with random drafts, a random end and a random fault, which may go on from a returned cache."""
        layers, held = data.draw(st.sampled_from([(list[Any](), list[int]()), *self.kept]))
        share = data.draw(st.sampled_from([None, 0.0, 0.5, 1.0, 1.0]))
        how = share, data.draw(st.sampled_from([0.0, 1.0])), data.draw(st.sampled_from([None, Shifting]))
        # Two tokens longer than any request.
        row = plain(self.family).ask(prompt, LONGEST + 2, *how, held, cache=layers)
        row.max_tokens = data.draw(st.integers(1, LONGEST))
        if min(row.right.margins[: row.max_tokens]) < NEAR_TIE:
            return
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, row.max_tokens - 1))
            row.stop = row.right.tokens[start : start + data.draw(st.integers(1, 3))]
        row.num_draft_tokens = data.draw(st.integers(1, 7))
        row.costs = data.draw(st.sampled_from([None, FREE]))
        part = data.draw(st.sampled_from([None] * 8 + CAN_FAIL))
        if part is not None and (row.strategy is not None or part not in OF_A_STRATEGY):
            row.break_part(part, data.draw(st.integers(0, 4)))
        self.batch.insert(row)

    @precondition(lambda self: self.batch.running)
    @rule(n=st.integers(1, 6))
    def step(self, n: int) -> None:
        self.kept += [(row.cache, row.text) for row in self.batch.step(n)]

    @precondition(lambda self: self.batch.running)
    @rule(data=st.data(), how=st.sampled_from(["extract", "cancel", "drop"]))
    def look(self, data: st.DataObject, how: str) -> None:
        """Mostly at a row that is decoded, if there is one."""
        running = self.batch.running
        uids = [uid for uid, row in running.items() if row.tokens] or list(running)
        self.kept += self.batch.look(data.draw(st.sampled_from(uids)), how)

    @precondition(lambda self: self.batch.running)
    @rule()
    def finish(self) -> None:
        self.batch.finish()

    def teardown(self) -> None:
        if hasattr(self, "batch"):
            self.batch.generator.close()


@pytest.mark.parametrize("family", MODELS)
def test_programs(family: str) -> None:
    """Requests come, go on from returned caches, and end by a limit, a stop sequence, a fault or their caller."""
    run_state_machine_as_test(
        type("Programs", (Programs,), {"family": family}),
        settings=settings(PROFILE, max_examples=PROFILE.max_examples if FULL else 12),
    )


def test_a_row_leaves_under_a_block() -> None:
    """What the others were fed ahead and did not return stays theirs."""
    for steps in range(1, 7):
        batch = Rows(plain("llama"), draft_costs=FREE)
        batch.insert(*others("llama"))
        batch.step(steps)
        batch.look(2, "drop")
        batch.finish()


@pytest.mark.parametrize(("part", "n_broken", "at"), FAILURES)
def test_a_failure_is_alone(part: str, n_broken: int, at: int) -> None:
    """A row whose sampler or processor raises ends with that error, one whose strategy raises goes on. So do others."""
    batch = Rows(plain("llama"), draft_costs=FREE, rows_fail_alone=True)
    rows = [plain("llama").ask(prompt_of(4), 40, 1.0) for _ in range(n_broken)]
    for row in rows:
        row.break_part(part, at)
    batch.finish(*rows, *(others("llama") if n_broken == 1 else []))
    for row in rows:
        if part in OF_A_STRATEGY:
            if f".{part} failed" not in str(row.stats.reason):
                row.broken(f"its {part} raised, and the reason is {row.stats.reason!r}")
            continue
        if row.last.finish_reason != "error":
            row.broken(f"its {part} raised, and it went on")
        assert part in ("shape", "token") or Broken in (type(row.last.error), type(row.last.error.__cause__))
        assert len(row.tokens) <= at
    batch.finish(*others("llama"))


def test_a_shared_sampler_is_called_as_often_as_in_the_release() -> None:
    """And what raises is raised to the caller, unless rows fail alone."""
    sizes = list[int]()

    def sampler(logprobs: mx.array) -> mx.array:
        sizes.append(len(logprobs))
        return greedy_sampler(logprobs)

    batch = Rows(plain("llama"))
    batch.finish(*(plain("llama").ask(prompt_of(5 + i), 12, sampler=sampler) for i in range(4)))
    if sizes != [4] * 13:
        broken(f"a sampler that all 4 rows share was called with {sizes} rows")
    row = plain("llama").ask(prompt_of(4), 12)
    row.break_part("sampler", 3)
    with pytest.raises(Broken):
        batch.finish(row)


class Followers(Wrong):
    """Drafts what mostly follows. About half of it is drawn."""

    def observe(self, tokens: Sequence[int]) -> None:
        self.last = tokens[-1]

    def propose(self, n_max: int) -> Sequence[int]:
        draft = [self.last]
        while len(draft) <= n_max:
            draft.append(FOLLOWER[draft[-1]])
        return draft[1:]


def test_a_likely_draft_is_drawn_against() -> None:
    steered = Plain(model_of(FAMILIES[0]))
    rows = [steered.ask(prompt_of(n), 40, None, 2.0, strategy=Followers()) for n in (9, 12)]
    assert all(min(row.right.margins) > NEAR_TIE for row in rows), "noise may change what they draw"
    batch = Rows(steered, draft_costs=FREE)
    batch.finish(*rows)
    for row in rows:
        if not 5 < row.stats.accepted < row.stats.drafted - 5:
            not_shown(f"{row.about}: {row.stats}")


class OneTooMany(AtDepth):
    """Drafts right tokens, and behind them the first id that is no token."""

    def propose(self, n_max: int) -> Sequence[int]:
        return [*super().propose(n_max)[:-1], VOCAB]


def test_no_id_that_is_no_token_is_fed() -> None:
    row = plain("llama").ask(prompt_of(9), 20)
    row.strategy = OneTooMany([*row.prompt, *row.right.tokens], 9)
    batch = Rows(plain("llama"), draft_costs=FREE)
    batch.finish(row)
    if not row.stats.drafted == row.stats.accepted > 9:
        row.broken(f"it drafts ids that are no tokens: {row.stats}")


# Far from the lengths at which the caches grow.
CONTEXT, N_ROWS, TOKENS = 900, 4, 24


def measured(share: float | None) -> tuple[int, int]:
    """The bytes that a batch holds after its answers, and its peak over the first pass."""
    llama, kept, held = plain("llama"), list[mx.array](), 0
    rows = [llama.ask(prompt_of(CONTEXT + i), TOKENS, share, costs=FREE) for i in range(N_ROWS)]
    gc.collect()
    mx.clear_cache()
    before, generator = mx.get_active_memory(), BatchGenerator(llama.model, draft_costs=FREE, prefill_step_size=256)
    for row in rows:
        generator.insert([list(row.prompt)], [TOKENS], **row.options())
    while responses := generator.next_generated():
        if not kept:
            mx.reset_peak_memory()
        kept += [response.logprobs for response in responses]
        if len(kept) <= N_ROWS * (TOKENS - 2):
            held = mx.get_active_memory() - before
    peak = mx.get_peak_memory() - before
    mx.eval(kept)
    # A step that was computed ahead may still be under way.
    mx.synchronize(generation_stream)
    gc.collect()
    before, own = mx.get_active_memory(), sum(logprobs.nbytes for logprobs in kept)
    kept.clear()
    if (freed := before - mx.get_active_memory()) > 1.5 * own:
        broken(f"log probabilities of {own} bytes hold {freed} bytes")
    return held, peak


def test_no_more_memory_than_plain_batching_and_a_block() -> None:
    """Log probabilities that the caller keeps hold nothing else."""
    args = plain("llama").model.args
    # Of a block in float32: keys and values, attention weights of all heads, activations and logits.
    width = 2 * args.num_hidden_layers * args.hidden_size + args.num_attention_heads * (CONTEXT + 256)
    width += 4 * args.intermediate_size + 8 * args.hidden_size + 4 * VOCAB
    most = 4 * N_ROWS * (1 + DRAFT) * width
    for what, drafted, undrafted in zip(("holds", "needs for a moment"), measured(0.5), measured(None), strict=True):
        if (more := drafted - undrafted) > most:
            broken(f"it {what} {more} bytes more, and a block has {most}")
