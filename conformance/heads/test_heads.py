"""Models with a head: the text of plain decoding, and a head that holds the tokens that were kept and no other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, DraftOptions, DraftStats, EditStrategy, HeadDraftStrategy, HeadedModel
from mlx_lm.draft import head as product
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from conformance.heads.oracle import VOCAB, Oracle, held
from conformance.oracle.recorder import Step, gap
from conformance.subjects.architectures import make_cache
from conformance.subjects.families import FAMILIES, OPTIONS, PROMPT, allowed, model_of, seeded

pytestmark = [pytest.mark.usefixtures("uncompiled"), pytest.mark.contract("C4")]
N = 18
COSTS = BlockCosts((1, 2, 16), (1.0, 1.2, 3.0))
# Their layers are not called as layers, or give something else: a head is refused.
REFUSED = ("deepseek_v41", "iquestloopcoder")
HEADED = [family for family in FAMILIES if family not in REFUSED]
# How many tokens are asked for, and after how many a generator is closed.
LIMITS, CLOSES = (1, 2, 5, 9), (1, 3, 4, 8)


@cache
def text_of(family: str, sampler: float = 0.0) -> list[Step]:
    return seeded(model_of(family), PROMPT, N, sampler=make_sampler(sampler), **OPTIONS.get(family, {}))


def headed_model(family: str, wrong: int = 4) -> HeadedModel:
    text = PROMPT + [token for token, _ in text_of(family)]
    return HeadedModel(model_of(family).model, Oracle(text, wrong))


def caches_of(family: str, headed: HeadedModel) -> list[Any]:
    """The caches of the family, which may have windows, and that of the head."""
    caches = make_cache(model_of(family))
    headed.add_cache(caches)
    return caches


def complaints(family: str, sampler: float, gated: bool, lookup: bool) -> list[str]:
    right, stats = text_of(family, sampler), DraftStats()
    headed = headed_model(family)
    caches = caches_of(family, headed)
    mx.random.seed(7)
    steps = speculative_generate_step(
        mx.array(PROMPT),
        headed,
        draft_strategy=HeadDraftStrategy(EditStrategy() if lookup else None),
        num_draft_tokens=5,
        draft_costs=COSTS if gated else None,
        disable_adaptive_gate=not gated,
        max_tokens=N,
        sampler=make_sampler(sampler),
        prompt_cache=caches,
        stats=stats,
        **OPTIONS.get(family, {}),
    )
    got = list(steps)
    wrong = []
    if [step[0] for step in got] != [token for token, _ in right]:
        wrong.append("tokens")
    elif gap([step[1] for step in got], [logprobs for _, logprobs in right]) > allowed(family):
        wrong.append("log probabilities")
    if not stats.drafted or (sampler == 0 and not stats.accepted):
        wrong.append("nothing was drafted rightly")
    return wrong


@pytest.mark.parametrize("lookup", [False, True], ids=["head", "head and edit"])
@pytest.mark.parametrize("family", HEADED)
def test_parity(family: str, lookup: bool) -> None:
    for sampler, gated in ((0.0, True), (0.0, False), (0.9, False)):
        assert complaints(family, sampler, gated, lookup) == []


def kept(family: str, n: int, stop: int | None) -> tuple[list[int], tuple[list[int], list[float]]]:
    """The prompt and what was yielded, and what the head holds then."""
    headed = headed_model(family)
    caches = caches_of(family, headed)
    options = {"num_draft_tokens": 5, "disable_adaptive_gate": True, "prompt_cache": caches}
    steps = speculative_generate_step(
        mx.array(PROMPT), headed, draft_strategy=HeadDraftStrategy(), max_tokens=n, prefill_step_size=8, **options
    )
    tokens = [next(steps)[0] for _ in range(stop or n)]
    steps.close()
    return PROMPT + tokens, held(headed, caches)


@cache
def digests(family: str) -> list[float]:
    """What the head is shown by plain decoding, one token after another."""
    headed = headed_model(family)
    caches = caches_of(family, headed)
    list(generate_step(mx.array(PROMPT), headed, max_tokens=N, prompt_cache=caches, prefill_step_size=8))
    return held(headed, caches)[1]


def check_what_is_held(family: str) -> None:
    for n, stop in [*((n, None) for n in LIMITS), *((N, n) for n in CLOSES)]:
        text, (tokens, shown) = kept(family, n, stop)
        assert tokens == text
        assert shown == pytest.approx(digests(family)[: len(text)], abs=2e-3)


@pytest.mark.contract("C3")
@pytest.mark.parametrize("family", [family for family in HEADED if family not in OPTIONS])
def test_the_head_holds_what_was_kept(family: str) -> None:
    check_what_is_held(family)


def rows(family: str, drafted: bool) -> list[list[int]]:
    """The tokens of ragged requests in a batch that is smaller than they are many, every third without drafts."""
    headed = headed_model(family, 3)
    batch = BatchGenerator(headed if drafted else headed.model, completion_batch_size=3, prefill_batch_size=2)
    options = {"num_draft_tokens": 4, "disable_adaptive_gate": True}
    planners = [
        DraftOptions(draft_strategy=HeadDraftStrategy(EditStrategy()), **options).make_planner(headed, ())
        if drafted and i % 3 < 2
        else None
        for i in range(5)
    ]
    prompts = [[*PROMPT[i:], 3 * i] for i in range(5)]
    uids = batch.insert(prompts, [N - 3 * i for i in range(5)], planners=planners)
    found: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := batch.next_generated():
        for response in responses:
            assert response.error is None
            found[response.uid].append(response.token)
            if response.finish_reason and drafted:
                tokens, _ = held(headed, response.prompt_cache)
                assert tokens == list(response.all_tokens)
    batch.close()
    if drafted:
        assert all(p.stats.drafted for p in planners if p)
    return list(found.values())


class Shifting:
    """Raises another token after each history. One that is not that of plain decoding changes all later tokens."""

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, (11 * tokens.size + tokens[-1].item()) % VOCAB].add(2.0)


@pytest.mark.contract("C5")
@pytest.mark.parametrize("family", ["llama", "qwen3_next", "gemma3_text"])
def test_processors(family: str) -> None:
    options = {"logits_processors": [Shifting()], "max_tokens": N}
    right = [token for token, _ in generate_step(mx.array(PROMPT), model_of(family), **options)]
    assert right != [token for token, _ in text_of(family)]
    headed = HeadedModel(model_of(family).model, Oracle(PROMPT + right))
    drafted = {"draft_strategy": HeadDraftStrategy(), "disable_adaptive_gate": True, "stats": DraftStats()}
    assert [token for token, *_ in speculative_generate_step(mx.array(PROMPT), headed, **options, **drafted)] == right
    assert drafted["stats"].accepted > 0


@pytest.mark.contract("C8")
@pytest.mark.parametrize("family", ["llama", "mamba", "qwen3_next", "gemma3_text"])
def test_one_forward_a_cycle(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is right in part costs no second pass of the model, and no token is fed twice."""
    model, stats = model_of(family), DraftStats()
    text = [token for token, _ in text_of(family)]
    blocks: list[int] = []
    call = type(model.model).__call__

    def counted(self: Any, tokens: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        blocks.append(tokens.shape[1])
        logits: mx.array = call(self, tokens, *args, **kwargs)
        return logits

    monkeypatch.setattr(type(model.model), "__call__", counted)
    headed = HeadedModel(model.model, Oracle(PROMPT + text, wrong=3))
    options = {"disable_adaptive_gate": True, "num_draft_tokens": 4, "stats": stats, "max_tokens": N}
    list(speculative_generate_step(mx.array(PROMPT), headed, draft_strategy=HeadDraftStrategy(), **options))
    assert 0 < stats.accepted < stats.drafted
    assert len(blocks) - 1 == stats.forwards >= stats.cycles > 0
    assert sum(blocks) == len(PROMPT) + stats.forwards - 1 + stats.drafted


@pytest.mark.contract("C2")
@pytest.mark.parametrize("family", REFUSED)
def test_a_model_without_hidden_states_is_named(family: str) -> None:
    with pytest.raises(ValueError, match=f"{family} does not give the hidden states"):
        headed_model(family)(mx.array([PROMPT]), caches_of(family, headed_model(family)))


@pytest.mark.contract("C10")
@pytest.mark.parametrize("family", ["llama", "mamba", "qwen3_next", "lfm2", "falcon_h1", "gemma3_text"])
def test_rows_share_a_head(family: str) -> None:
    assert rows(family, True) == rows(family, False)


def keep_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "trim_prompt_cache", lambda *_: 0)


def show_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of = product._rows
    monkeypatch.setattr(product, "_rows", lambda kept, starts, n: rows_of(kept, [max(s - 1, 0) for s in starts], n))


def show_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadedModel, "_catch_up", lambda *_: None)


def show_the_state_after(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Oracle.__call__
    monkeypatch.setattr(Oracle, "__call__", lambda self, tokens, h, c: call(self, tokens, mx.roll(h, -1, axis=1), c))


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "drafts stay in the head's cache": keep_drafts,
    "the tokens before those that it has not seen": show_another_row,
    "what it has not seen": show_no_rows,
    "hidden states a token late": show_the_state_after,
}


@pytest.mark.planted
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digests("llama")
    FAULTS[fault](monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        check_what_is_held("llama")
