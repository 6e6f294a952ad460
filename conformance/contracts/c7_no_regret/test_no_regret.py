"""Drafting runs no extra passes to measure costs, holds no memory for that, and learns from what it decodes anyway."""

from __future__ import annotations

import gc
import time
from itertools import count, islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm import load, stream_generate
from mlx_lm.draft import BlockCosts, DraftStats, costs
from mlx_lm.draft.costs import LearnedCosts, PassClock
from mlx_lm.draft.planner import Planner
from mlx_lm.generate import (
    BatchGenerator,
    PromptProcessingBatch,
    generate_step,
    prompt_lookup_generate_step,
    speculative_generate_step,
)
from mlx_lm.models.cache import make_prompt_cache

from conformance import FIXTURE
from conformance.drafters import Partly
from conformance.oracle.recorder import fed
from conformance.oracle.rows import Plain, prompt_of
from conformance.subjects.architectures import CONFIGS, build
from conformance.subjects.families import model_of
from conformance.subjects.prompts import ids

pytestmark = pytest.mark.usefixtures("uncompiled")


def test_the_first_response_is_as_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a stopped clock no costs are learned, so the second response drafts as the first one.
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    # A model that has decoded nothing before.
    model, tokenizer = load(str(FIXTURE))
    prompt, found = ids(tokenizer, "rename"), list[Any]()
    for drafting in ({}, *2 * [{"draft_type": "auto"}]):
        with fed(model) as blocks:
            responses = stream_generate(model, tokenizer, prompt, max_tokens=48, **drafting)
            found.append((blocks, [(response.token, len(blocks), response.draft) for response in responses]))
    (plain, right), (blocks, first), (others, second) = found
    assert [token for token, *_ in right] == [token for token, *_ in first] == [token for token, *_ in second]
    a, b = first[0][1], right[0][1]
    assert a <= b, f"{a} passes before the first token, and {b} in plain decoding"
    assert blocks == others, f"the first response feeds {blocks}, the second {others}"
    assert len(blocks) <= len(plain), f"{len(blocks)} passes, and {len(plain)} in plain decoding"
    # Each pass gives one undrafted token, including the one after the last token.
    stats = first[-1][2]
    a, b = stats.forwards, len(first) - stats.accepted + 1
    assert stats.accepted > 0
    assert a == b, f"{a} passes for {b} tokens that were not drafted"
    n_prompt = len(blocks) - stats.forwards
    assert blocks[:n_prompt] == plain[:n_prompt]


def held(model: Any, decode: Any) -> int:
    """The bytes that generation holds at its third token, after a prompt longer than a chunk."""
    gc.collect()
    before, cache = mx.get_active_memory(), make_prompt_cache(model)
    steps = decode(mx.array([(7 * i) % 64 for i in range(1200)]), model, max_tokens=-1, prompt_cache=cache)
    kept = list(islice(steps, 3))
    mx.eval([row for _, row, *_ in kept])
    mx.synchronize()
    gc.collect()
    bytes_held: int = mx.get_active_memory() - before
    steps.close()
    return bytes_held


def test_no_more_memory_is_held_than_by_plain_decoding() -> None:
    # So wide that the logits of one chunk are visible in its memory.
    wide = {"hidden_size": 256, "intermediate_size": 512, "layer_types": None, "sliding_window": None, "head_dim": 32}
    with patch.dict(CONFIGS, {"llama": CONFIGS["llama"] | wide}):
        model = build("llama")
    plain, drafted = (held(model, decode) for decode in (generate_step, prompt_lookup_generate_step))
    assert drafted < 1.05 * plain, f"{drafted} bytes are held where plain decoding holds {plain}"


N, COSTS = 60, BlockCosts((1, 2, 16), (1.0, 1.35, 6.0))


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait is long, so that the time of each pass is learned."""
    times = (2.0**n for n in count())
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))


def right(row: int = 9) -> Partly:
    """A drafter whose drafts are all right, for a prompt of so many tokens."""
    return Partly(prompt_of(row) + Plain(model_of("llama").model).answer(tuple(prompt_of(row)), N).tokens, 1.0)


def decode(**options: Any) -> None:
    options |= {"draft_strategy": right(), "num_draft_tokens": 4, "max_tokens": N}
    steps = speculative_generate_step(mx.array(prompt_of(9)), model_of("llama").model, **options)
    assert len(list(steps)) == N


def check(learned: list[tuple[int, int]]) -> None:
    """Numbers of tokens that the times of passes are learned for, each with that of the pass."""
    assert len(learned) > 2
    for booked, passed in learned:
        assert booked == passed, f"the time of a pass of {passed} tokens, or 0 beside others, is learned for {booked}"


@pytest.mark.usefixtures("long_waits")
def test_rows_that_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row after another joins a batch. A pass with others beside it counts as none."""
    reads, joined, learned = [0], [False], list[tuple[int, int]]()
    read, generate = PassClock.read, PromptProcessingBatch.generate

    def note(self: PassClock, tokens: mx.array, ahead: bool) -> Any:
        reads.append(0 if joined[0] else tokens.size)
        joined[0] = False
        return read(self, tokens, ahead)

    def join(self: PromptProcessingBatch, *args: Any) -> Any:
        batch = generate(self, *args)
        joined[0] = True
        return batch

    monkeypatch.setattr(PassClock, "read", note)
    monkeypatch.setattr(PromptProcessingBatch, "generate", join)
    monkeypatch.setattr(LearnedCosts, "learn", lambda _, n, *__: learned.append((n, reads[-1])))
    generator = BatchGenerator(model_of("llama").model, draft_costs=LearnedCosts(COSTS))
    for row in (9, 10, 11):
        generator.insert([prompt_of(row)], [N], planners=[Planner(right(row), 4, DraftStats())])
        for _ in range(4):
            generator.next()
    check(learned)


@pytest.mark.usefixtures("long_waits")
def test_near_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token of a block is a near tie, which takes a pass of its own."""
    learned, begun = list[tuple[int, int]](), [0]
    begin, end = PassClock.begin, PassClock.fed

    def note_begin(self: PassClock, ahead: bool) -> None:
        begun[0] = len(blocks)
        begin(self, ahead)

    def note_fed(self: PassClock, n_tokens: int) -> None:
        end(self, n_tokens)
        if self._pass:
            learned.append((n_tokens, sum(blocks[begun[0] :])))

    monkeypatch.setattr(PassClock, "begin", note_begin)
    monkeypatch.setattr(PassClock, "fed", note_fed)
    with fed(model_of("llama").model) as blocks:
        decode(draft_margin=0.3, disable_adaptive_gate=True)
    check(learned)


@pytest.mark.usefixtures("long_waits")
def test_a_quantized_cache_has_costs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks cost nearly as much as their tokens, which a plain cache would be wrong about."""
    learners: list[set[LearnedCosts]] = [set(), set()]
    for options, found in zip(({}, {"kv_bits": 8, "kv_group_size": 32}), learners, strict=True):
        monkeypatch.setattr(LearnedCosts, "learn", lambda self, *_, found=found: found.add(self))
        decode(**options)
    assert all(learners)
    assert not set.intersection(*learners), "the times of both caches are learned together"
