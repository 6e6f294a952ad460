"""Two ranks that decode one sequence together use the same drafts, tensor parallel and as a pipeline.

Rank 0 decides all drafts. The costs, memory, strategy and speed of the other rank do not matter: both feed the same
blocks, and the tokens are those of plain decoding on one machine. A deadlock fails after a time limit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from conformance import FIXTURE
from conformance.contracts.c9_ranks_agree.ranks import (
    CASES,
    FAILING,
    PATTERN,
    N,
    Result,
    decoded,
    prompts_for,
    prompts_of,
)
from conformance.doors.ranks import Stuck, call, run
from conformance.subjects.architectures import build
from conformance.subjects.tiny import as_qwen2

# Far more than is needed, also on a busy machine. Only a deadlock takes longer.
LIMIT = 400.0
# In the other cases the gate depends on the costs of this machine.
CERTAIN = ("ungated", "costs", "scripted", "scripted ties")
# Rank 0 looks up drafts alone, so the way to split a model does not matter for these.
LOOKED_UP = ("ngram-simple", "ngram-mod", "unasked")
# Tensor-parallel ranks wait for each other in every layer. Only in a pipeline can one fall behind.
SLOW = ("slow first", "slow last")
GREEDY = [case for case in CASES if "sampled" not in case]


def decode(folder: Path, how: str, model: str, *cases: str, decides_alone: bool = False) -> list[list[Result]]:
    """The results of each case on each rank."""
    told = call(folder, LIMIT, decoded, how, model, cases, decides_alone)
    return [list(pair) for pair in zip(*told, strict=True)]


def check_alike(ranks: list[Result]) -> None:
    """All ranks fed the same blocks, drafted the same and yielded the same."""
    first, *others = ranks
    for other in others:
        assert (first.case, first.prompt) == (other.case, other.prompt)
        what = f"{first.case}, {first.prompt}"
        assert first.blocks == other.blocks, f"{what}: the blocks differ"
        assert first.tokens == other.tokens, f"{what}: the tokens differ"
        assert (first.drafted, first.accepted, first.ahead) == (other.drafted, other.accepted, other.ahead), what
        # A stage of a pipeline may have no cache with an offset.
        assert len({*first.offsets, *other.offsets}) == 1, f"{what}: the caches differ"


def plain_decode(model: Any, prompt: list[int]) -> tuple[list[int], list[int]]:
    """The tokens of plain decoding on one machine, and the offsets of the cache that it leaves."""
    layers = make_prompt_cache(model)
    tokens = [token for token, _ in generate_step(mx.array(prompt), model, max_tokens=N, prompt_cache=layers)]
    return tokens, sorted({c.offset for c in layers if hasattr(c, "offset")})


@pytest.mark.parametrize("how", ["tensor", "pipeline"])
def test_two_ranks_decode_what_one_decodes(tmp_path: Path, fixture: tuple[Any, Any], how: str) -> None:
    path = as_qwen2(tmp_path) if how == "pipeline" else FIXTURE
    prompts = prompts_for(str(path))
    right = {name: plain_decode(fixture[0], prompt) for name, prompt in prompts.items()}
    cases = [case for case in CASES if case not in (SLOW if how == "tensor" else LOOKED_UP)]
    results = decode(tmp_path, how, str(path), *cases)
    assert len(results) == sum(len(prompts_of(case, prompts)) for case in cases)
    for ranks in results:
        check_alike(ranks)
        assert ranks[0].error is None
        if ranks[0].case in GREEDY:
            assert (ranks[0].tokens, ranks[0].offsets) == right[ranks[0].prompt], ranks[0].case
        if ranks[0].case in CERTAIN:
            assert ranks[0].accepted > 0, ranks[0].case
    sampled = {case: [ranks[0].tokens for ranks in results if ranks[0].case == case] for case in CASES}
    assert sampled["sampled"] == sampled["plain, sampled"]
    for ranks in results:
        # Without a draft for a while, plain decoding runs ahead.
        assert ranks[0].ahead > 0 or ranks[0].case not in ("now and then", "wrong"), ranks[0].case


@pytest.mark.parametrize("family", ["deepseek_v41", "qwen3_next"])
def test_caches_that_are_restored_and_rewound(tmp_path: Path, family: str) -> None:
    right = plain_decode(build(family), PATTERN)
    for ranks in decode(tmp_path, "pipeline", family, "costs", "scripted", "scripted ties", "now and then"):
        check_alike(ranks)
        assert (ranks[0].tokens, ranks[0].error) == (right[0], None), ranks[0].case
        assert ranks[0].offsets in ([], right[1]), ranks[0].case
        assert ranks[0].accepted > 0 or ranks[0].case != "scripted"


def test_an_error_of_the_first_rank_is_one_of_all(tmp_path: Path) -> None:
    """The ranks also stay in step: the next case decodes as usual."""
    *failed, auto, again = decode(tmp_path, "tensor", str(FIXTURE), *FAILING, "auto")
    assert {ranks[0].case for ranks in failed} == {*FAILING}
    for first, other in failed:
        assert first.error is not None, first
        assert other.error is not None, other
        check_alike([first, other])
    assert "SuffixStrategy.propose failed: call 2" in str(failed[0][0].error)
    assert "rank 0" in str(failed[0][1].error)
    for ranks in (auto, again):
        check_alike(ranks)
        assert ranks[0].error is None


@pytest.mark.planted
def test_ranks_that_decide_by_themselves_are_found(tmp_path: Path) -> None:
    """Here each rank has the whole model, so that different blocks do not cause a deadlock."""
    cases = ("ungated", "costs")
    for ranks in decode(tmp_path, "whole", str(FIXTURE), *cases):
        check_alike(ranks)
    faulty = decode(tmp_path, "whole", str(FIXTURE), *cases, decides_alone=True)
    assert len(faulty) == len(cases)
    for ranks in faulty:
        with pytest.raises(AssertionError, match="the blocks differ"):
            check_alike(ranks)


@pytest.mark.planted
def test_a_deadlock_is_a_failure(tmp_path: Path) -> None:
    wait = "import time, mlx.core as mx; g = mx.distributed.init(strict=True); "
    wait += "g.rank() or mx.distributed.all_sum(mx.ones(1)).item(); "
    with pytest.raises(Stuck):
        run(["-c", wait + "time.sleep(600)"], tmp_path, limit=8.0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(["-c", wait + "1 / 0"], tmp_path, LIMIT)
