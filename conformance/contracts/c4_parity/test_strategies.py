"""Every strategy, on every cache family: the tokens and log probabilities of plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import (
    BlockCosts,
    DraftStats,
    EditStrategy,
    ModelDraftStrategy,
    NgramModStrategy,
    NgramModTable,
    NgramSimpleStrategy,
    SuffixStrategy,
)
from mlx_lm.draft.costs import LearnedCosts
from mlx_lm.draft.loop import Decoder
from mlx_lm.draft.near_ties import AUTO_NOISE, NearTies
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.generate import speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from conformance.oracle.recorder import Step, gap
from conformance.subjects.architectures import make_cache
from conformance.subjects.families import (
    FAMILIES,
    OPTIONS,
    PROMPT,
    VOCAB,
    allowed,
    model_of,
    mutant,
    scripted,
    seeded,
)
from conformance.testing.faults.models import InBfloat16, OfAnotherKernel

pytestmark = pytest.mark.usefixtures("uncompiled")

N = 18
# The costs of blocks are fixed: nothing here may depend on a clock.
COSTS = BlockCosts((1, 2, 16), (1.0, 1.2, 3.0))
SAMPLERS: dict[str, dict[str, float]] = {
    "greedy": {"temp": 0.0},
    "nucleus": {"temp": 0.9, "top_p": 0.9, "min_p": 0.02},
    "xtc": {"temp": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.02},
}
# Each sampler, and whether the gate skips drafts that do not pay.
RUNS = (("greedy", True), ("greedy", False), ("nucleus", True), ("xtc", False))
# A draft model takes as long as all other strategies together.
MODEL_RUNS = (("greedy", True), ("xtc", False))
Make = Callable[[Any, list[int]], Any]


def warm_table(text: list[int]) -> NgramModTable:
    """A memory that has learned the answer, and the answer with other tokens in between."""
    table = NgramModTable(3, vocab_size=VOCAB)
    for shown in (text, [*text[: len(text) // 2], 1, 2, 3]):
        NgramModStrategy(table).observe(shown)
    return table


def of_the_model(model: Any, _: list[int]) -> ModelDraftStrategy:
    return ModelDraftStrategy(model, make_cache(model))


# The text is the prompt and the answer of plain decoding. A slightly different reference also gives wrong drafts.
STRATEGIES: dict[str, Make] = {
    "ngram-simple": lambda _, text: NgramSimpleStrategy(2, [*text[:-4], 5, *text[8:]]),
    "suffix": lambda _, text: SuffixStrategy(draft_reference=[*text[: len(PROMPT) + 9], 5, *text[len(PROMPT) + 10 :]]),
    "edit": lambda _, text: EditStrategy(draft_reference=[*text[: len(PROMPT) + 9], 5, *text[len(PROMPT) + 10 :]]),
    "ngram-mod": lambda _, text: NgramModStrategy(warm_table(text)),
    "the model": of_the_model,
}


def steps_of(family: str, strategy: Any, n: int = N, **kwargs: Any) -> list[Any]:
    mx.random.seed(7)
    costs = None if kwargs.get("disable_adaptive_gate") else COSTS
    arguments = {"draft_strategy": strategy, "num_draft_tokens": 5, "draft_costs": costs, "max_tokens": n} | kwargs
    return list(speculative_generate_step(mx.array(PROMPT), model_of(family), **arguments, **OPTIONS.get(family, {})))


@cache
def plain_steps(family: str, sampler: str) -> list[Step]:
    sample = make_sampler(**SAMPLERS[sampler])
    return seeded(model_of(family), PROMPT, N, sampler=sample, **OPTIONS.get(family, {}))


def complaints(family: str, name: str) -> list[str]:
    wrong, accepted = [], 0
    for sampler, gated in MODEL_RUNS if "model" in name else RUNS:
        right, stats = plain_steps(family, sampler), DraftStats()
        strategy = STRATEGIES[name](model_of(family), PROMPT + [token for token, _ in right])
        sample = make_sampler(**SAMPLERS[sampler])
        got = steps_of(family, strategy, sampler=sample, disable_adaptive_gate=not gated, stats=stats)
        accepted += stats.accepted
        if [step[0] for step in got] != [step[0] for step in right]:
            wrong.append(f"{sampler} {gated}: tokens")
        elif gap([step[1] for step in got], [step[1] for step in right]) > allowed(family):
            wrong.append(f"{sampler} {gated}: log probabilities")
        elif stats.accepted != sum(from_draft for _, _, from_draft in got):
            wrong.append(f"{sampler} {gated}: accepted")
    return wrong if accepted else [*wrong, "nothing was drafted rightly"]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_parity(family: str, name: str) -> None:
    assert complaints(family, name) == []


def near_ties(family: str, margin: float | str) -> tuple[bool, DraftStats]:
    """Whether a noisy model with half of the drafts right gives the tokens of plain decoding, and the statistics."""
    model = InBfloat16(model_of(family)) if margin == "auto" else OfAnotherKernel(model_of(family), logits=0.02)
    stats, n = DraftStats(), 3 * N
    right = seeded(model, PROMPT, n)
    drafter = scripted(PROMPT, right)
    arguments = {"num_draft_tokens": 5, "disable_adaptive_gate": True, "draft_margin": margin}
    steps = speculative_generate_step(
        mx.array(PROMPT), model, draft_strategy=drafter, max_tokens=n, stats=stats, **arguments
    )
    return [step[0] for step in steps] == [step[0] for step in right], stats


NOISY = ["llama", "gemma3_text", "mamba", "qwen3_next", "deepseek_v41"]


@pytest.mark.parametrize("family", NOISY)
def test_a_margin_decides_near_ties(family: str) -> None:
    for margin in (0.04, "auto"):
        equal, stats = near_ties(family, margin)
        assert equal
        # Each near tie costs one more forward pass. If a block is restored, its right tokens cost another.
        extra = stats.forwards - (3 * N - stats.accepted + 1) - stats.near_ties
        assert stats.near_ties > 0
        assert 0 <= extra <= (stats.cycles if family == "deepseek_v41" else 0)


@pytest.mark.planted
def test_parity_is_lost_without_a_margin() -> None:
    assert [family for family in NOISY if not near_ties(family, 0.0)[0]] != []


def learned(family: str, bound: float) -> float:
    """The learned margin, in multiples of the noise. It comes from one token in a block and the same token alone."""
    model, margin, noise = OfAnotherKernel(model_of(family), logits=bound), NearTies("auto"), 0.0
    for length in range(2, 6):
        layers, tokens = make_cache(model), mx.array([PROMPT])
        model(tokens[:, :-length], cache=layers)
        block, single = (model(tokens[:, -length:stop], cache=deepcopy(layers))[0, :1] for stop in (None, 1 - length))
        margin.learn(block, single)
        noise = max(noise, gap(block, single))
    assert noise <= bound + allowed(family)
    return float(margin.margin) / max(noise, 1e-9)


@pytest.mark.parametrize("family", ["llama", "mamba", "qwen3_next"])
def test_the_margin_is_what_the_noise_needs(family: str) -> None:
    assert learned(family, 0.0) == 0
    assert learned(family, 0.02) == pytest.approx(AUTO_NOISE)


def test_nothing_is_learned_when_costs_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LearnedCosts, "learn", lambda *_: pytest.fail("learned"))
    assert len(steps_of("llama", SuffixStrategy(draft_reference=PROMPT))) == N


LOOP_FAULTS = {
    "every draft is right": ("generate", "self.is_drafted(token)", "self.n_accepted < len(self.draft)"),
    "a row too early": ("draw_rows", "draw(logits[i : i + 1]) for", "draw(logits[max(i - 1, 0) : max(i, 1)]) for"),
    "a greedy row too early": (
        "draw_rows",
        "sampler(logprobs), len",
        "sampler(mx.concatenate([logprobs[:1], logprobs[:-1]])), len",
    ),
}


@pytest.mark.planted
@pytest.mark.parametrize("fault", LOOP_FAULTS)
def test_a_planted_fault_of_the_loop_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    name, *edit = LOOP_FAULTS[fault]
    monkeypatch.setattr(Decoder, name, mutant(getattr(Decoder, name), *edit))
    assert complaints("llama", "suffix") != []


@pytest.mark.planted
def test_a_margin_that_decides_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    verify_alone = BlockVerifier.verify_alone

    def row_of_the_block(verifier: Any, n_accepted: int) -> mx.array:
        logits = verify_alone(verifier, n_accepted)
        return logits + 0.02 * mx.random.uniform(-1, 1, logits.shape, key=mx.random.key(n_accepted))

    monkeypatch.setattr(BlockVerifier, "verify_alone", row_of_the_block)
    assert not all(near_ties(family, 0.04)[0] for family in NOISY)
