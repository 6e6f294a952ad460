"""A head goes back with its model: the cache of both at a checkpoint is as if they had seen nothing else."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.draft import HeadDraftStrategy, HeadedModel
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.prefixes import Checkpoints

from conformance.heads.oracle import Oracle, held
from conformance.oracle.recorder import Step
from conformance.subjects.architectures import make_cache
from conformance.subjects.families import PROMPT, VOCAB, model_of, seeded

pytestmark = [pytest.mark.usefixtures("uncompiled"), pytest.mark.contract("C11")]
N, PLACES = 18, [4, 11, 17]


def drafted(headed: HeadedModel, prompt: list[int], cache: list[object], taken: Checkpoints, n: int) -> list[Step]:
    options = {"num_draft_tokens": 5, "disable_adaptive_gate": True, "max_tokens": n, "checkpoints": taken}
    strategy = HeadDraftStrategy()
    steps = speculative_generate_step(
        mx.array(prompt), headed, draft_strategy=strategy, prompt_cache=cache, prefill_step_size=8, **options
    )
    return [(token, row) for token, row, _ in steps]


@pytest.mark.parametrize("family", ["mamba", "qwen3_next", "gemma3_text"])
def test_a_head_goes_back(family: str) -> None:
    model = model_of(family).model
    text = PROMPT + [token for token, _ in seeded(model, PROMPT, N)]
    headed, stored, taken = (
        HeadedModel(model, Oracle(text)),
        LRUPromptCache(max_checkpoints=8),
        Checkpoints(8, len(PROMPT), 0, PLACES),
    )
    cache = make_cache(headed)
    assert [token for token, _ in drafted(headed, PROMPT, cache, taken, N)] == text[len(PROMPT) :]
    stored.insert_cache("model", text, cache, checkpoints=taken.taken)
    for place in PLACES:
        prompt = [*text[: place + 1], (text[place + 1] + 1) % VOCAB]
        for _ in range(2):
            found, rest = stored.fetch_nearest_cache("model", prompt)
            assert len(prompt) - len(rest) == place
            right = [token for token, _ in seeded(model, prompt, 3)]
            assert [token for token, _ in drafted(headed, rest, found, Checkpoints(), 3)] == right
            fresh = make_cache(headed)
            headed(mx.array([[*prompt, *right]]), cache=fresh)
            (tokens, shown), (others, digests) = held(headed, found), held(headed, fresh)
            assert tokens == others == prompt + right
            assert shown == pytest.approx(digests, abs=2e-3)
