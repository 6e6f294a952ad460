"""Unseeded sampling has the distribution that the release says, in a batch and alone, with drafts and without.

Each draw has a place in the cumulative distribution of what may follow the text before it, by the definition of
temperature and top-p. If every draw has that distribution, the places are independent and uniform, whatever the texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.sample_utils import make_sampler

from conformance.oracle.findings import broken
from conformance.oracle.rows import FREE, prompt_of
from conformance.subjects.decoded import FAMILIES, FOLLOWER, model_of

pytestmark = pytest.mark.usefixtures("uncompiled")
MODEL, PROMPT = model_of(FAMILIES[0]), prompt_of(9)
TEMPERATURE, TOP_P = 2.0, 0.99
DRAWS, ROWS, BINS = 960, 16, 8
# How often a tree that is right fails one of these tests.
FALSE_ALARM = 1e-6
# Each token, and whether it was drafted.
Text = list[tuple[int, bool]]


class Followers:
    """Drafts what mostly follows. About half of it is drawn."""

    def observe(self, tokens: Sequence[int]) -> None:
        self.last = tokens[-1]

    def propose(self, n_max: int) -> Sequence[int]:
        draft = [FOLLOWER[self.last]]
        while len(draft) < n_max:
            draft.append(FOLLOWER[draft[-1]])
        return draft[:n_max]

    def accept(self, n_accepted: int, n_drafted: int) -> None:
        pass


def alone(drafted: bool, sampler: Callable[..., Any]) -> list[Text]:
    how: dict[str, Any] = {"max_tokens": DRAWS, "sampler": sampler}
    if not drafted:
        return [[(token, False) for token, _ in generate_step(mx.array(PROMPT), MODEL, **how)]]
    how |= {"draft_strategy": Followers(), "num_draft_tokens": 3, "disable_adaptive_gate": True}
    return [[(token, is_draft) for token, _, is_draft in speculative_generate_step(mx.array(PROMPT), MODEL, **how)]]


def batch(drafted: bool, sampler: Callable[..., Any]) -> list[Text]:
    # A release batches no drafts.
    generator, options = BatchGenerator(MODEL, **({"draft_costs": FREE} if drafted else {})), dict[str, Any]()
    if drafted:
        from mlx_lm.draft import DraftStats, Planner

        options["planners"] = [Planner(Followers(), 3, DraftStats()) for _ in range(ROWS)]
    uids = generator.insert([PROMPT] * ROWS, [DRAWS // ROWS] * ROWS, samplers=[sampler] * ROWS, **options)
    texts: dict[int, Text] = {uid: [] for uid in uids}
    while responses := generator.next_generated():
        for response in responses:
            texts[response.uid].append((response.token, getattr(response, "from_draft", False)))
    return list(texts.values())


def places(text: Text) -> Any:
    """Where each draw falls: between the sum of what is likelier and that sum with its own probability."""
    tokens = [token for token, _ in text]
    logits = np.array(MODEL(mx.array([PROMPT + tokens]))[0, len(PROMPT) - 1 : -1], dtype=np.float64)
    order = np.argsort(-logits, axis=-1)
    chances = np.exp(np.take_along_axis(logits, order, -1) - logits.max(-1, keepdims=True))
    # Top-p, and the temperature after it.
    below = (chances.cumsum(-1) - chances) / chances.sum(-1, keepdims=True)
    heated = np.where(below < TOP_P, chances ** (1 / TEMPERATURE), 0)
    heated /= heated.sum(-1, keepdims=True)
    is_drawn = order == np.array(tokens)[:, None]
    # What top-p leaves out has no width; a right sampler draws it only if rounding moves an end.
    return np.minimum((heated.cumsum(-1) - heated * np.random.random((len(tokens), 1)))[is_drawn], 1 - 1e-9)


def chance_of(counts: Any) -> float:
    """At most how likely so uneven counts are, or more uneven ones, for any number of draws.

    R. Agrawal, "Finite-sample concentration of the multinomial in relative entropy", IEEE Trans. Inf. Theory, 2020.
    """
    n, free = sum(counts), len(counts) - 1
    entropy = sum(count * math.log(count * len(counts) / n) for count in counts if count > 0)
    return math.exp(-entropy) * (math.e * entropy / free) ** free if entropy > free else 1.0


@pytest.mark.contract("C4")
@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafted"])
@pytest.mark.parametrize("decode", [alone, batch])
def test_draws_have_their_distribution(decode: Callable[..., list[Text]], drafted: bool) -> None:
    texts = decode(drafted, make_sampler(TEMPERATURE, TOP_P))
    found = np.bincount([int(BINS * place) for text in texts for place in places(text)], minlength=BINS).tolist()
    # Four tests share the false alarms.
    if (chance := chance_of(found)) < FALSE_ALARM / 4:
        broken(
            f"of {sum(found)} draws, {found} fall into {BINS} parts of their distribution that are equally likely, the "
            f"likeliest tokens first: the chance of that is {chance:.1g}"
        )
    n_right = sum(is_draft for text in texts for _, is_draft in text)
    assert (n_right > DRAWS / 5) == drafted, f"{n_right} of {DRAWS} tokens were drafted and kept"
