"""Models with a head: the text of plain decoding, and a head that holds the tokens that were kept and no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, DraftOptions, DraftStats, EditStrategy, HeadDraftStrategy, HeadedModel
from mlx_lm.generate import BatchGenerator, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from conformance.adapters import Adapters, Drafts
from conformance.contracts.c11_prefixes import sessions
from conformance.heads.oracle import Oracle, held
from conformance.oracle.compare import compare_caches, compare_counts, compare_seen, compare_tokens
from conformance.oracle.findings import broken
from conformance.oracle.recorder import fed
from conformance.oracle.run import ENDS, SAMPLERS, SEED, Case, N, Run, Witness
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import FAMILIES, Family, model_of, prompt_of

pytestmark = [pytest.mark.usefixtures("uncompiled"), pytest.mark.contract("C4")]
AT_ONCE = 8
COSTS = BlockCosts((1, 2, 16), (1.0, 1.2, 3.0))
# Their layers are not called as layers, or give something else: a head is refused.
REFUSED = ("deepseek_v41", "iquestloopcoder")
OF = {family.name: family for family in FAMILIES}
DRAFTERS = ("head", "head and edit")
WAYS: list[dict[str, Any]] = [
    {"gated": True},
    {"sampler": "temperature"},
    {"sampler": "watched", "processors": "shifting"},
    *({"n": n} for n in (1, 2, 5, 9)),
    *({"end": "close", "n": n} for n in (1, 3, 4, 8)),
    *({"end": end, "n": 6} for end in ("throw", "consumer", "failure")),
]


def cases() -> Iterator[Case]:
    for i, family in enumerate(family for family in FAMILIES if family.name not in REFUSED):
        for drafter in DRAFTERS:
            yield Case(family, drafter, prefill=AT_ONCE)
        for j, way in enumerate(WAYS):
            yield Case(family, DRAFTERS[(i + j) % 2], prefill=AT_ONCE, **way)


def drafted(case: Case) -> Run:
    text = [*case.prompt, *case.plain(N).tokens]
    headed = HeadedModel(model_of(case.family), Oracle(text))
    run = Run(case, case.family.caches(), Witness(make_sampler(**SAMPLERS.get(case.sampler, {}))), stats=DraftStats())
    headed.add_cache(run.caches)
    strategy = HeadDraftStrategy(EditStrategy() if case.drafter == "head and edit" else None)
    run.drafts = Drafts(case.drafter, text, strategy=strategy)
    options = run.options() | {"draft_strategy": strategy, "num_draft_tokens": 5, "stats": run.stats}
    options |= {"draft_costs": COSTS} if case.gated else {"disable_adaptive_gate": True}
    mx.random.seed(SEED)
    with fed(headed) as run.blocks:
        ENDS[case.end](run, lambda **end: speculative_generate_step(mx.array(case.prompt), headed, **options, **end))
    run.random = [part.tolist() for part in mx.random.state]
    if case.n == N and (not run.stats.drafted or not (case.sampler or any(run.flags))):
        broken(f"{run.stats.accepted} of {run.stats.drafted} drafted tokens are right, so nothing is shown")
    # A quantized cache of keys and values shows other numbers.
    if not case.family.options:
        # A draw that fails comes behind a token that was fed, as in plain decoding.
        n = len(case.prompt) + len(run.tokens) + (case.end == "failure")
        check_head(case, held(headed, run.caches), text[:n])
    return run


def check_head(case: Case, found: tuple[list[int], list[float]], text: list[int]) -> None:
    """The head holds these tokens, and was shown the hidden state that each was drawn from."""
    tokens, shown = found
    if tokens != text:
        broken(f"the head holds {len(tokens)} tokens that end with {tokens[-6:]}, instead of {len(text)}, {text[-6:]}")
    right = digests(case.family, (*case.prompt, *case.plain(N).tokens), case.length)
    for i, (a, b) in enumerate(zip(shown, right, strict=False)):
        if abs(a - b) > 2e-3:
            broken(f"the head is shown another hidden state with token {i} of {len(text)}, off by {abs(a - b):.2g}")


@cache
def digests(family: Family, text: tuple[int, ...], length: int) -> list[float]:
    """What the head has to be shown with each token of plain decoding: what the last layer gave before it."""
    model, caches, seen, found = model_of(family), family.caches(), list[Any](), [0.0]
    layer = type(model.layers[-1])
    call = layer.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(call(self, *args, **kwargs))
        return seen[-1]

    with patch.object(layer, "__call__", noted):
        for start, end in pairwise([*range(0, length - 1, AT_ONCE), *range(length - 1, len(text) + 1)]):
            model(mx.array([text[start:end]]), cache=caches)
            hidden = seen[-1][0] if isinstance(seen[-1], tuple) else seen[-1]
            found += hidden[0].astype(mx.float32).sum(axis=-1).tolist()
    return found


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_a_head(case: Case, adapter: Adapters) -> None:
    """The tokens, the log probabilities, the histories, the passes and the caches of plain decoding."""
    got, right = drafted(case), case.plain()
    if case.sampler:
        compare_seen(got, right, exact=True)
    compare_tokens(got, right)
    if case.end != "failure":
        compare_counts(got)
    compare_caches(replace(got, caches=got.caches[:-1], drafts=None), right, adapter)


@pytest.mark.contract("C2")
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_without_hidden_states_is_named(name: str) -> None:
    headed = HeadedModel(model_of(OF[name]), Oracle([]))
    with pytest.raises(ValueError, match=f"{name} does not give the hidden states"):
        headed(mx.array([prompt_of(21)]), make_cache(headed))


def rows(family: Family, drafted: bool) -> list[list[int]]:
    """The tokens of ragged requests in a batch that is smaller than they are many, every third without drafts."""
    case = Case(family)
    headed = HeadedModel(model_of(family), Oracle([*case.prompt, *case.plain().tokens], wrong=3))
    batch = BatchGenerator(headed if drafted else headed.model, completion_batch_size=3, prefill_batch_size=2)
    options = {"num_draft_tokens": 4, "disable_adaptive_gate": True}
    planners = [
        DraftOptions(draft_strategy=HeadDraftStrategy(EditStrategy()), **options).make_planner(headed, ())
        if drafted and i % 3 < 2
        else None
        for i in range(5)
    ]
    prompts = [[*case.prompt[i:], 3 * i] for i in range(5)]
    uids = batch.insert(prompts, [N - 3 * i for i in range(5)], planners=planners)
    found: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := batch.next_generated():
        for response in responses:
            assert response.error is None
            found[response.uid].append(response.token)
            if response.finish_reason and drafted:
                kept, text = held(headed, response.prompt_cache)[0], list(response.all_tokens)
                assert kept == text, f"row {uids.index(response.uid)}: the head holds {kept}, not {text}"
    batch.close()
    assert all(planner.stats.drafted for planner in planners if planner)
    return list(found.values())


@pytest.mark.contract("C10")
@pytest.mark.parametrize("name", ["llama", "mamba", "qwen3_next", "lfm2", "falcon_h1", "gemma3_text"])
def test_rows_share_a_head(name: str) -> None:
    for i, (got, right) in enumerate(zip(rows(OF[name], True), rows(OF[name], False), strict=True)):
        assert got == right, f"row {i}: {got} instead of {right}"


@pytest.mark.contract("C11")
@pytest.mark.parametrize("name", ["mamba", "qwen3_next", "gemma3_text"])
def test_a_head_goes_back(name: str) -> None:
    """The cache of both at a checkpoint is as if they had seen nothing else."""
    plain = sessions.Session(name, model_of(OF[name]))
    headed = HeadedModel(plain.model, Oracle(plain.cold(tuple(sessions.PROMPT), sessions.ANSWER).text))
    session = sessions.Session(name, headed)

    def drafts(_: list[int]) -> dict[str, Any]:
        return {"draft_strategy": HeadDraftStrategy(), "num_draft_tokens": 3, "disable_adaptive_gate": True}

    text = session.ask(sessions.PROMPT, drafts).text
    for one in session.ask_edits(text, (11, 17, 48, 70), drafts):
        fresh = make_cache(headed)
        headed(mx.array([one.text]), cache=fresh)
        (tokens, shown), (others, right) = held(headed, one.cache), held(headed, fresh)
        assert tokens == others == one.text, f"back to {one.found} tokens: the head holds {tokens}, not {one.text}"
        assert shown == pytest.approx(right, abs=2e-3)
