"""Every architecture that cannot be trimmed, edited anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx_lm.models.cache import QuantizedKVCache

from conformance.caches.kinds import WHOLE
from conformance.caches.layers import leaves
from conformance.contracts.c11_prefixes.sessions import ANSWER, PROMPT, WINDOW, Session, partly
from conformance.oracle.recorder import gap, next_turn
from conformance.oracle.rows import CLOSE
from conformance.subjects.architectures import CONFIGS, SHORT, batched, build, make_cache, outline, runnable
from conformance.subjects.families import K, model_of

pytestmark = pytest.mark.usefixtures("uncompiled")
# How many tokens the next prompt shares: none, at the edges of the window, in the middle, at the ends of messages and
# of what is fed at once, one token from the end, and in the answer.
EDITS = (0, 9, WINDOW - 1, WINDOW, WINDOW + 1, 30, 35, 48, 58, 59, 70, 77)
AFTER_DRAFTS = (WINDOW + 1, 48, 70, 77)
# SSD and MLA: what is fed at once sums in another order than parts of it.
ROUNDING = dict.fromkeys(
    "bailing_hybrid falcon_h1 granitemoehybrid longcat_flash_ngram mamba2 nemotron_h plamo2".split(), 1e-4
)
# Models with a layer that does not hold every token of a long prompt.
UNTRIMMABLE = [
    name for name in runnable() if not all(type(c).__name__ in WHOLE for c in leaves(make_cache(outline(name))))
]


def check_edits(name: str, model: Any, **options: Any) -> None:
    for drafts, edits in ((None, EDITS), (partly(0.5), AFTER_DRAFTS)):
        session = Session(name, model, ROUNDING.get(name, 0.0), **options)
        session.ask_edits(session.ask(PROMPT, drafts).text, edits)


@pytest.mark.parametrize("name", UNTRIMMABLE)
def test_alone(name: str) -> None:
    check_edits(name, build(name))


# The others compute wrong blocks in the release too.
@pytest.mark.parametrize("name", [name for name in UNTRIMMABLE if name in batched() and name not in SHORT])
def test_together(name: str) -> None:
    """Rows of several lengths: without drafts, with drafts that are half right, and with right ones."""
    session = Session(name, build(name), CLOSE)
    for one in session.ask_together([(PROMPT, None), (PROMPT[4:45], partly(0.5)), (PROMPT[9:40], partly(1.0))]):
        session.ask_edits(one.text, (16, 39))


# What is asked for next: the same, the next turn, an edited turn, an answer once more, another last token, and the same
# turn edited again.
CHANGES: list[Callable[[list[int]], list[int]]] = [
    lambda text: text,
    lambda text: [*text, 5, 6, 7, 8, 9],
    lambda text: [*text[:35], 1, 2, 3, *text[40:]],
    lambda text: text[:-ANSWER],
    lambda text: [*text[: -ANSWER - 1], 4],
    lambda text: [*text[:35], 1, 4],
]


@pytest.mark.parametrize("name", ["qwen3_next", "gemma3_text", "falcon_h1", "mamba2", "lfm2"])
def test_a_session(name: str) -> None:
    """Two conversations at a time, one with drafts, go on from what is stored as far as one of them did before."""
    session, texts = Session(name, build(name)), [PROMPT, PROMPT[5:45]]
    for change in CHANGES:
        first, second = map(change, texts)
        texts = [one.text for one in session.ask_together([(first, None), (second, partly(0.5))])]


QUANTIZED = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
# Heads of 32 numbers, which quantization needs.
WIDE = {"qwen3_next": {"head_dim": 32}} | {name: {"num_attention_heads": 2} for name in ("lfm2", "jamba")}


@pytest.mark.parametrize("name", WIDE)
def test_quantized(name: str) -> None:
    with patch.dict(CONFIGS, {name: CONFIGS[name] | WIDE[name]}):
        model = build(name)
    assert any(isinstance(c, QuantizedKVCache) for c in Session(name, model, **QUANTIZED).cold(PROMPT, 1).cache)
    check_edits(name, model, **QUANTIZED)


@pytest.mark.parametrize("drafter", ["llama", "qwen3_next"])
@pytest.mark.parametrize("name", ["gemma3_text", "mamba"])
def test_a_draft_model(name: str, drafter: str) -> None:
    """Its cache goes back with that of the model. One that cannot be trimmed is left out."""
    small, model = model_of(drafter).model, build(name)
    session, own = Session(name, model, extra=small), len(make_cache(model))

    def drafts(_: list[int]) -> dict[str, Any]:
        return {"draft_model": small, "num_draft_tokens": K}

    for one in session.ask_edits(session.ask(PROMPT, drafts).text, AFTER_DRAFTS, drafts):
        assert (one.n_layers > own) == (drafter == "llama")
        right = make_cache(small)
        small(mx.array([one.text]), cache=right)
        for layers in [one.cache[own:]] if one.n_layers > own else []:
            off = gap(next_turn(small, layers), next_turn(small, right))
            assert off < CLOSE, f"{drafter} behind {one.found} tokens of {name} holds something else: off by {off}"
