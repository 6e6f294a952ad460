"""The edges of drafted decoding: no tokens, no drafts, no cache, a prompt of one token."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import DraftStats
from mlx_lm.sample_utils import greedy_sampler, make_sampler

from conformance.adapters import Drafts
from conformance.drafters import Scripted
from conformance.oracle.compare import compare_tokens, said
from conformance.oracle.run import SEED, Case, N, Run, right_turn
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import FAMILIES, Family, model_of
from conformance.subjects.families import GENERATE, PROMPT, K, lookup, seeded, shape
from conformance.subjects.families import model_of as plain_model_of

pytestmark = pytest.mark.usefixtures("uncompiled")
BY_NAME = {family.name: family for family in FAMILIES}


def with_a_draft_model(case: Case, layers: list[Any] | None, prompt: list[int], **options: Any) -> Run:
    """Decode with the draft model of a case. The list of caches gets those of the draft model."""
    model = model_of(case.family)
    draft_model = Drafts(case.drafter, []).draft_model(model)
    run = Run(case, layers or [], witness=None)  # type: ignore[arg-type]
    mx.random.seed(SEED)
    options = {"prompt_cache": layers, "num_draft_tokens": K, **case.family.options, **options}
    run.take(GENERATE.speculative_generate_step(mx.array(prompt), model, draft_model, **options))
    return run


@pytest.mark.contract("C3")
@pytest.mark.parametrize("family", ["llama", "qwen3_next", "gemma3_text"])
def test_no_draft_tokens(family: str) -> None:
    """Nothing is fed to the draft model, and nothing of it is left in the cache for the next turn."""
    case = Case(BY_NAME[family], "similar", n=5)
    layers = case.family.caches()
    compare_tokens(with_a_draft_model(case, layers, case.prompt, num_draft_tokens=0, max_tokens=5), case.plain())
    assert shape(layers) == shape(case.plain().caches), f"the caches are {', '.join(map(said, shape(layers)))}"
    turn = with_a_draft_model(case, layers, [7, 9], num_draft_tokens=0, max_tokens=6)
    compare_tokens(turn, right_turn(case.plain().case), "in a second turn, ")


@pytest.mark.contract("C2")
def test_one_draft_token_from_a_cache_that_cannot_trim() -> None:
    """The draft model was not fed such a draft, so it has nothing to restore."""
    case = Case(BY_NAME["llama"], "unrelated", n=3)
    layers = case.family.caches()
    compare_tokens(with_a_draft_model(case, layers, case.prompt, num_draft_tokens=1, max_tokens=3), case.plain())
    turn = with_a_draft_model(case, layers, [7, 9], max_tokens=6)
    compare_tokens(turn, right_turn(case.plain().case), "in a second turn, ")


@pytest.mark.contract("C4")
@pytest.mark.parametrize("family", ["llama", "llama quantized late", "qwen3_next", "nanbeige"])
def test_without_a_prompt_cache(family: str) -> None:
    case, stats = Case(BY_NAME[family], "similar"), DraftStats()
    compare_tokens(with_a_draft_model(case, None, case.prompt, max_tokens=N, stats=stats), case.plain())
    assert stats.accepted > N / 2, f"the draft model that mostly agrees was right {stats.accepted} times in {N} tokens"


def prompt_only(family: Family, decode: Any) -> tuple[list[Any], list[Any], list[tuple[int, ...]]]:
    """Decode no tokens. Returns the yielded steps, the cache, and the progress reports of the prompt."""
    layers, calls = family.caches(), list[tuple[int, ...]]()
    steps = decode(prompt_cache=layers, prompt_progress_callback=lambda *call: calls.append(call))
    return list(steps), shape(layers), calls


@pytest.mark.contract("C3")
@pytest.mark.parametrize("family", ["llama", "mamba", "deepseek_v41"])
def test_nothing_is_asked_for(family: str) -> None:
    one = BY_NAME[family]
    right = prompt_only(one, partial(seeded, model_of(one), PROMPT, 0))
    assert prompt_only(one, partial(lookup, model_of(one), PROMPT, Scripted([]), max_tokens=0)) == right


@pytest.mark.contract("C3")
@pytest.mark.parametrize("first_turn", [0, 5])
def test_a_prompt_of_one_token_before_quantization(first_turn: int) -> None:
    """A cache entry is quantized after one token when it is due. Rows of a draft must not read the old entry."""
    model, options = plain_model_of("llama"), BY_NAME["llama quantized"].options
    layers = make_cache(model)
    if first_turn:
        seeded(model, PROMPT, first_turn, prompt_cache=layers)
    steps = seeded(model, [7], N, prompt_cache=deepcopy(layers), **options)
    drafter = Scripted([7, *(token for token, _ in steps)])
    drafter.turn = K
    got = list(lookup(model, [7], drafter, max_tokens=N, prompt_cache=layers, **options))
    for i, ((a, row, _), (b, right)) in enumerate(zip(got, steps, strict=True)):
        assert a == b, f"token {i} is {a} instead of {b}"
        assert mx.array_equal(row, right).item(), f"the log probabilities of token {i} are not those of plain decoding"


@pytest.mark.contract("C5")
def test_a_greedy_draft_without_processors_is_drawn_at_once() -> None:
    """The loop recognizes the sampler that make_sampler returns for temperature 0."""
    assert make_sampler(0.0) is greedy_sampler
