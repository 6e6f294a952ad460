"""Models with a head: the text of plain decoding, and a head that holds the tokens that were kept and no other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm.draft import BlockCosts, DraftOptions, DraftStats, EditStrategy, HeadDraftStrategy, HeadedModel
from mlx_lm.generate import BatchGenerator, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from conformance.contracts.c11_prefixes import sessions
from conformance.heads.oracle import VOCAB, Oracle, held
from conformance.oracle.findings import broken
from conformance.oracle.recorder import Step, fed, gap
from conformance.subjects.architectures import make_cache
from conformance.subjects.families import FAMILIES, OPTIONS, PROMPT, allowed, model_of, seeded

pytestmark = [pytest.mark.usefixtures("uncompiled"), pytest.mark.contract("C4")]
N, AT_ONCE = 18, 8
COSTS = BlockCosts((1, 2, 16), (1.0, 1.2, 3.0))
# Their layers are not called as layers, or give something else: a head is refused.
REFUSED = ("deepseek_v41", "iquestloopcoder")
HEADED = [family for family in FAMILIES if family not in REFUSED]


class Shifting:
    """Raises another token after each history. One that is not that of plain decoding changes all later tokens."""

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, (11 * tokens.size + tokens[-1].item()) % VOCAB].add(2.0)


@dataclass(frozen=True)
class Run:
    """How many tokens are asked for, after how many it is closed, and how it samples and drafts."""

    n: int = N
    stop: int | None = None
    temperature: float = 0.0
    gated: bool = False
    processed: bool = False
    # Every so many tokens that the head says one is wrong.
    wrong: int = 4

    @property
    def options(self) -> dict[str, Any]:
        """Those of plain decoding, too."""
        more = {"logits_processors": [Shifting()]} if self.processed else {}
        return {"sampler": make_sampler(self.temperature), "prefill_step_size": AT_ONCE, **more}


RUNS = [Run(gated=True), Run(), Run(wrong=3), Run(temperature=0.9), Run(processed=True)]
RUNS += [Run(n) for n in (1, 2, 5, 9)] + [Run(stop=n) for n in (1, 3, 4, 8)]


@cache
def text_of(family: str, temperature: float = 0.0, processed: bool = False) -> list[Step]:
    options = Run(temperature=temperature, processed=processed).options
    return seeded(model_of(family), PROMPT, N, **options, **OPTIONS.get(family, {}))


def headed_model(family: str, run: Run = RUNS[0]) -> HeadedModel:
    text = PROMPT + [token for token, _ in text_of(family, run.temperature, run.processed)]
    return HeadedModel(model_of(family).model, Oracle(text, run.wrong))


def caches_of(family: str, headed: HeadedModel) -> list[Any]:
    """The caches of the family, which may have windows, and that of the head."""
    caches = make_cache(model_of(family))
    headed.add_cache(caches)
    return caches


@cache
def digests(family: str) -> list[float]:
    """What the head has to be shown with each token of plain decoding: what the last layer gave before it."""
    model, cache = model_of(family).model, make_cache(model_of(family))
    text, seen = PROMPT + [token for token, _ in text_of(family)], list[Any]()
    layer, found = type(model.layers[-1]), [0.0]
    call = layer.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(call(self, *args, **kwargs))
        return seen[-1]

    ends = [*range(0, len(PROMPT) - 1, AT_ONCE), *range(len(PROMPT) - 1, len(text) + 1)]
    with patch.object(layer, "__call__", noted):
        for start, end in pairwise(ends):
            model(mx.array([text[start:end]]), cache=cache)
            hidden = seen[-1][0] if isinstance(seen[-1], tuple) else seen[-1]
            found += hidden[0].astype(mx.float32).sum(axis=-1).tolist()
    return found


def check(family: str, run: Run, lookup: bool) -> None:
    """The tokens and log probabilities of plain decoding, in no more passes, and what the head holds then."""
    right = text_of(family, run.temperature, run.processed)[: run.stop or run.n]
    headed, stats = headed_model(family, run), DraftStats()
    caches = caches_of(family, headed)
    mx.random.seed(7)
    drafting = {
        "draft_strategy": HeadDraftStrategy(EditStrategy() if lookup else None),
        "num_draft_tokens": 5,
        "draft_costs": COSTS if run.gated else None,
        "disable_adaptive_gate": not run.gated,
    }
    given = {**run.options, **drafting, **OPTIONS.get(family, {}), "prompt_cache": caches, "stats": stats}
    with fed(headed) as blocks:
        steps = speculative_generate_step(mx.array(PROMPT), headed, max_tokens=run.n, **given)
        got = [next(steps) for _ in right] if run.stop else list(steps)
        steps.close()
    tokens, wanted = [step[0] for step in got], [token for token, _ in right]
    about = f"{family}, {'head and edit' if lookup else 'head'}, {run}"
    if tokens != wanted:
        broken(f"{about}: {tokens} instead of {wanted}")
    if (off := gap([step[1] for step in got], [row for _, row in right])) > allowed(family):
        broken(f"{about}: the log probabilities are off by {off:.2g}")
    if run.n == N and not run.stop:
        if not stats.drafted or (not run.temperature and not stats.accepted):
            broken(f"{about}: {stats.accepted} of {stats.drafted} drafted tokens are right, so nothing is shown")
        check_passes(about, blocks, stats)
    if family not in OPTIONS and not run.processed and not run.temperature:
        kept, shown = held(headed, caches)
        if kept != PROMPT + tokens:
            broken(f"{about}: the head holds {kept} instead of {PROMPT + tokens}")
        off, i = max((abs(a - b), i) for i, (a, b) in enumerate(zip(shown, digests(family), strict=False)))
        if off > 2e-3:
            broken(f"{about}: the head is shown another hidden state with token {i} of {len(kept)}, off by {off:.2g}")


def check_passes(about: str, blocks: list[int], stats: DraftStats) -> None:
    """A draft that is right in part costs no second pass of the model, and no token is fed twice."""
    prompt = len(range(0, len(PROMPT) - 1, AT_ONCE))
    if len(blocks) - prompt != stats.forwards or not 0 < stats.cycles <= stats.forwards:
        broken(f"{about}: {len(blocks) - prompt} passes, {stats.forwards} counted, {stats.cycles} with drafts")
    if sum(blocks) != (n := len(PROMPT) + stats.forwards - 1 + stats.drafted):
        broken(f"{about}: {sum(blocks)} tokens are fed instead of {n}")


@pytest.mark.parametrize("lookup", [False, True], ids=["head", "head and edit"])
@pytest.mark.parametrize("family", HEADED)
def test_a_head(family: str, lookup: bool) -> None:
    for run in RUNS:
        check(family, run, lookup)


@pytest.mark.contract("C2")
@pytest.mark.parametrize("family", REFUSED)
def test_a_model_without_hidden_states_is_named(family: str) -> None:
    headed = headed_model(family)
    with pytest.raises(ValueError, match=f"{family} does not give the hidden states"):
        headed(mx.array([PROMPT]), caches_of(family, headed))


def rows(family: str, drafted: bool) -> list[list[int]]:
    """The tokens of ragged requests in a batch that is smaller than they are many, every third without drafts."""
    headed = headed_model(family, Run(wrong=3))
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
                kept, text = held(headed, response.prompt_cache)[0], list(response.all_tokens)
                assert kept == text, f"{family}, row {uids.index(response.uid)}: the head holds {kept}, not {text}"
    batch.close()
    assert all(planner.stats.drafted for planner in planners if planner)
    return list(found.values())


@pytest.mark.contract("C10")
@pytest.mark.parametrize("family", ["llama", "mamba", "qwen3_next", "lfm2", "falcon_h1", "gemma3_text"])
def test_rows_share_a_head(family: str) -> None:
    for i, (got, right) in enumerate(zip(rows(family, True), rows(family, False), strict=True)):
        assert got == right, f"{family}, row {i}: {got} instead of {right}"


@pytest.mark.contract("C11")
@pytest.mark.parametrize("family", ["mamba", "qwen3_next", "gemma3_text"])
def test_a_head_goes_back(family: str) -> None:
    """The cache of both at a checkpoint is as if they had seen nothing else."""
    plain = sessions.Session(family, model_of(family).model)
    headed = HeadedModel(plain.model, Oracle(plain.cold(sessions.PROMPT, sessions.ANSWER).text))
    session = sessions.Session(family, headed)

    def drafts(_: list[int]) -> dict[str, Any]:
        return {"draft_strategy": HeadDraftStrategy(), "num_draft_tokens": 3, "disable_adaptive_gate": True}

    text = session.ask(sessions.PROMPT, drafts).text
    for one in session.ask_edits(text, (11, 17, 48, 70), drafts):
        fresh = make_cache(headed)
        headed(mx.array([one.text]), cache=fresh)
        (tokens, shown), (others, right) = held(headed, one.cache), held(headed, fresh)
        assert tokens == others == one.text, f"{family}, back to {one.found} tokens: the head holds {tokens}"
        assert shown == pytest.approx(right, abs=2e-3)
    session.end()
