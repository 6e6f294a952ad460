"""Count forward passes and fed tokens, for every number of accepted tokens.

The prompts end below, at and past the window of 16 tokens, and around the steps of 256 rows by which a cache grows.
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

import pytest
from mlx_lm.draft import DraftStats, verify
from mlx_lm.draft.loop import Decoder
from mlx_lm.draft.planner import Planner
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.models.cache import can_trim_prompt_cache

from conformance.drafters import AtDepth
from conformance.oracle.recorder import Step, gap
from conformance.subjects.families import (
    FAMILIES,
    OPTIONS,
    RESTORED,
    VOCAB,
    WINDOW,
    K,
    allowed,
    lookup,
    model_of,
    mutant,
    seeded,
)

pytestmark = pytest.mark.usefixtures("uncompiled")

N = 7
LENGTHS = [1, 2, WINDOW - K - 1, WINDOW - 1, WINDOW, WINDOW + 2, 2 * WINDOW + 1]
GROWTH = [256 - N - 1, 256 - K - 1, 256 - 2, 256 - 1, 256, 256 + 1]
DEPTHS = range(K + 1)
# One family for each way to trim runs at every length. The others run below, at and past the window.
FILLED = {"llama", "llama max_kv_size", "gemma3_text", "mamba", "qwen3_next", "llama4"}
# The longest block that the patched models compute exactly as single tokens.
SHORT = 16


def tokens_of(length: int) -> list[int]:
    return [(7 * i * i + 3 * i + 5) % VOCAB for i in range(length)]


@cache
def right(family: str, length: int, n: int = N) -> list[Step]:
    """Plain decoding of n tokens, and of the draft that may follow."""
    return seeded(model_of(family), tokens_of(length), n + K, **OPTIONS.get(family, {}))


def near(family: str, length: int) -> float:
    """The allowed distance. A recurrent layer computes its first block like a prompt, and that can be a draft."""
    return allowed(family) if length > 1 else max(allowed(family), 1e-4)


class Count:
    """A drafted run: the blocks it fed after the prompt, and its statistics."""

    def __init__(self, family: str, length: int, depth: int, n: int = N, close: bool = False) -> None:
        model, prompt, self.stats = model_of(family), tokens_of(length), DraftStats()
        script = prompt + [token for token, _ in right(family, length, n)]
        self.drafter = AtDepth(script, depth)
        model.blocks.clear()
        steps = lookup(
            model,
            prompt,
            self.drafter,
            max_tokens=-1 if close else n,
            stats=self.stats,
            **OPTIONS.get(family, {}),
        )
        self.steps: list[Any] = list(islice(steps, n))
        steps.close()
        # The prompt without its last token is one block.
        self.blocks = model.blocks[length > 1 :]


def expected_blocks(n: int, depth: int, restored: bool, length: int) -> list[int]:
    """The expected blocks: a right token and a draft. After a restore, the right tokens of the last block come first.

    No draft goes past n. The first draft needs the size of the vocabulary, which a first forward pass gives. So after a
    prompt of one token it comes one block later.
    """
    blocks: list[int] = []
    pending, left = 1, n
    while True:
        n_draft = min(K, left) if blocks or length > 1 else 0
        n_right = min(depth, n_draft)
        blocks.append(pending + n_draft)
        pending = pending + n_right + 1 if restored and n_right < n_draft else 1
        left -= n_right
        if left == 0:
            return blocks
        left -= 1


def complaints(family: str, length: int, depth: int) -> list[str]:
    count, wanted = Count(family, length, depth), right(family, length)[:N]
    stats, accepted = count.stats, sum(from_draft for _, _, from_draft in count.steps)
    checks = {
        "tokens": [s[0] for s in count.steps] == [s[0] for s in wanted],
        "log probabilities": gap([s[1] for s in count.steps], [s[1] for s in wanted]) <= near(family, length),
        "depths": all(count.drafter.as_meant),
        "blocks": count.blocks == expected_blocks(N, depth, family in RESTORED, length),
        "forwards": stats.forwards == len(count.blocks) == N - accepted + 1,
        "cycles": stats.cycles == len(count.drafter.as_meant),
        "accepted": stats.accepted == accepted,
        # No token is fed twice: each block is one right token and a draft.
        "tokens fed": family in RESTORED or sum(count.blocks) == stats.forwards + stats.drafted,
    }
    return [f"{length} {depth}: {check} {count.blocks}" for check, holds in checks.items() if not holds]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llama quantized late"])
def test_counts(family: str) -> None:
    lengths = LENGTHS if family in FILLED else [2, WINDOW, WINDOW + 2]
    assert [c for length in lengths for depth in DEPTHS for c in complaints(family, length, depth)] == []


@pytest.mark.parametrize("length", GROWTH)
def test_counts_where_a_cache_grows(length: int) -> None:
    assert [c for depth in DEPTHS for c in complaints("llama", length, depth)] == []


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mamba", "llama4"])
def test_an_early_close_costs_no_forward(family: str) -> None:
    for depth in DEPTHS:
        for n in range(1, 6):
            count = Count(family, 17, depth, n, close=True)
            accepted = sum(from_draft for _, _, from_draft in count.steps)
            assert count.stats.forwards == len(count.blocks) == n - accepted + 1


def test_a_close_after_a_restore_costs_one_forward() -> None:
    """The restored tokens are fed at the end, and this pass is counted."""
    count = Count("deepseek_v41", 17, 1, 2, close=True)
    assert count.blocks == [1 + K, 2 + 1 + K, 2 + 1]
    assert count.stats.forwards == len(count.blocks)


def test_restored_blocks_stay_short() -> None:
    """Drafts that are never right cost only a few tokens in each block, however often they come."""
    count = Count("deepseek_v41", 17, 0, 24)
    assert max(count.blocks) <= SHORT


accept, drop = BlockVerifier.accept, verify.drop_tokens


def replay_at_once(verifier: Any, n_accepted: int) -> None:
    accept(verifier, n_accepted)
    verifier._feed_replay()


@pytest.mark.planted
@pytest.mark.parametrize("family", ["llama", "mamba", "deepseek_v41"])
def test_one_forward_too_many_is_found(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Planted faults: blocks are restored without need, or fed again at once."""
    if family in RESTORED:
        monkeypatch.setattr(BlockVerifier, "accept", replay_at_once)
    else:
        monkeypatch.setattr(BlockVerifier, "_can_trim", lambda *_: False)
    assert complaints(family, 17, 1) != []


@pytest.mark.planted
@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        (Decoder, "generate", "feed(token, self.plan(n_left))", "feed(token, self.plan(n_left + 1))"),
        (Decoder, "generate", "feed(token, self.plan(n_left))", "feed(token, self.plan(max(n_left - 1, 0)))"),
        (Decoder, "generate", "stats.accepted += 1", "stats.accepted += len(self.draft) > 1"),
        (Planner, "feed", "stats.drafted += len(draft)", "stats.drafted += len(draft) + 1"),
        (BlockVerifier, "_forward", "self.forwards += 1", "self.forwards += len(tokens) > 1"),
    ],
)
def test_a_wrong_count_is_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    monkeypatch.setattr(owner, name, mutant(getattr(owner, name), old, new))
    assert [c for depth in DEPTHS for c in complaints("llama", 17, depth)] != []


@pytest.mark.planted
def test_a_window_that_is_trimmed_too_far_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_more(cache: list[Any], n: int) -> None:
        drop(cache, n + (n > 0 and can_trim_prompt_cache(cache, n + 1)))

    monkeypatch.setattr(verify, "drop_tokens", one_more)
    assert complaints("gemma3_text", 17, 1) != []
