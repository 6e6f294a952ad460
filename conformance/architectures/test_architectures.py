"""Every architecture with drafts: alone, as a row of a batch, and with the longest drafts.

The prompts are longer than the windows and chunks of the tiny configurations, and drafts are rejected at every depth.
Blocks are what single steps are, bit for bit, or in float32 close to them where a device or a model rounds otherwise.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import DraftStats
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.base import SHORT_BLOCK
from mlx_lm.models.cache import snapshot_prompt_cache
from mlx_lm.models.switch_layers import SwitchLinear

from conformance.architectures import asked
from conformance.drafters import VOCAB, Scripted
from conformance.oracle.compare import MOST
from conformance.oracle.findings import WHOLE, broken
from conformance.oracle.profiles import FULL
from conformance.oracle.recorder import Run
from conformance.oracle.rows import CLOSE, FREE, Plain, Rows, prompt_of
from conformance.oracle.run import compare_tokens
from conformance.subjects.architectures import (
    CONFIGS,
    GROUP,
    RESTORED,
    ROUNDING,
    SHORT,
    batched,
    bounded,
    build,
    is_row_identical,
    make_cache,
    outline,
    quantize,
    recurrent,
    runnable,
)

pytestmark = pytest.mark.usefixtures("uncompiled")
LONG = prompt_of(21)
PROMPTS = {"short": [5, 9, 3], "past the window": LONG}
# The longest draft, and enough tokens for each depth of it to come up.
DRAFT, TOKENS = 4, 14


@pytest.mark.parametrize(
    ("name", "where"),
    [
        (name, where)
        for name in runnable()
        for where in PROMPTS
        if where != "short" or name in {*asked()} & {*bounded()}
    ],
)
def test_parity(name: str, where: str) -> None:
    """The tokens, log probabilities and cache of plain decoding, at every depth of acceptance, in one pass a block."""
    model, prompt = build(name), PROMPTS[where]
    plain, got = Plain(model), Run(prompt, make_cache(model), stats=DraftStats())
    right = plain.answer(tuple(prompt), TOKENS)
    drafter = Scripted(right.text, VOCAB)
    got.loop(speculative_generate_step, model, TOKENS, draft_strategy=drafter, num_draft_tokens=DRAFT, **WHOLE)
    most, stats = 0.0 if is_row_identical(name) else MOST, got.stats
    compare_tokens(got, right, f"{name}, {where}: ", most)
    # The logits of the next turn have a larger scale.
    if (off := plain.off(got.cache, prompt, right.tokens)) > 16 * most:
        broken(f"{name}, {where}: the next turn is off by {off:.2g}")
    assert set(range(DRAFT)) <= set(drafter.depths), f"{name}: of the depths, only {set(drafter.depths)} came up"
    # One pass for the last token of the prompt, one for each cycle, and one at the end after a restore.
    passes = TOKENS + 1 - stats.accepted + (name in RESTORED)
    assert stats.forwards <= passes, f"{name}: {stats.forwards} forward passes instead of {passes}"
    n_fed = len(prompt) - 1 + stats.forwards + stats.drafted
    if name not in RESTORED and sum(got.blocks) != n_fed:
        broken(
            f"{name}, {where}: blocks of {got.blocks} are {sum(got.blocks)} tokens, not {n_fed}: accepted ones "
            "are fed again. A recurrent layer says with runs_again and last_rows of mlx_lm.models.recurrent what it "
            "computes again; a model that cannot is a row of RESTORED in conformance/subjects/architectures.py"
        )


# For each batch, the length of a row's prompt, the share of its drafts that is right, or None for no drafts, and the
# tokens of its answer. The last row joins while the others are decoded.
BATCHES: dict[str, list[tuple[int, float | None, int]]] = {
    "one row": [(21, 0.5, 16)],
    "several lengths": [(21, 1.0, 18), (3, 0.5, 14), (9, 0.0, 6), (14, None, 6)],
}
# Below the window.
BELOW: dict[str, list[tuple[int, float | None, int]]] = {
    "one row": [(5, 0.5, 8)],
    "several lengths": [(5, 1.0, 9), (3, 0.5, 9), (2, 0.0, 6), (1, None, 6)],
}


def check_rows(name: str, batch: str, dtype: mx.Dtype = mx.float32) -> None:
    model = build(name)
    model.set_dtype(dtype)
    alone = Plain(model)
    rows = (BELOW if name in SHORT else BATCHES)[batch]

    near = 0.0 if batch == "one row" and is_row_identical(name) else CLOSE
    served = Rows(alone, near, draft_costs=FREE)
    found = [alone.ask(prompt_of(length), n, share) for length, share, n in rows]
    served.insert(*found[:-1])
    served.step(len(found))
    served.finish(found[-1])
    for row, (_, share, n) in zip(found, rows, strict=True):
        # They match the script of a row, with one forward pass for each block.
        stats, n_right = row.stats, sum(row.drafted)
        if n_right > 0 and not share:
            row.broken(f"{n_right} drafted tokens were right")
        elif share is not None and (stats.forwards > n + 1 - n_right or stats.drafted == 0 or stats.reason is not None):
            row.broken(f"{n_right} of {n} tokens were drafted, and the statistics say {stats}")
        elif share and n_right == 0:
            row.broken(f"none of {stats.drafted} drafted tokens was right")


# phi3small is not among the runnable ones. Its sparse layers place queries and keys in blocks.
# For a layer that holds every token one row is what each of several is.
@pytest.mark.parametrize(
    ("name", "batch"),
    [
        (name, batch)
        for name in [*asked(), "phi3small"]
        for batch in BATCHES
        if name in (*batched(), "phi3small") and (name in bounded() or batch != "one row")
    ],
)
def test_rows(name: str, batch: str) -> None:
    """Rows that accept all, half or none of their drafts, a row without, and one that joins end in other columns."""
    check_rows(name, batch)


# Experts in bfloat16 do not run on a CPU.
EXPERTS = [name for name in recurrent() if any(isinstance(part, SwitchLinear) for part in outline(name).modules())]


@pytest.mark.parametrize("name", [name for name in recurrent() if name in batched() and name not in EXPERTS])
def test_rows_in_16_bits(name: str) -> None:
    """The states of recurrent layers show in bfloat16 how they were computed."""
    if mx.default_device() != mx.cpu:
        pytest.skip("The kernels of this device are not row-identical.")
    check_rows(name, "one row", mx.bfloat16)


FORMS = ("4 bits", "float32")


def widened(config: Any) -> Any:
    """With the widths that matter to quantize latent layers."""
    if not isinstance(config, dict):
        return config
    wide = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
    return {key: GROUP if key in wide else widened(value) for key, value in config.items()}


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for i, name in enumerate(asked()) for form in FORMS if FULL or i % 2 or form == "4 bits"],
)
def test_the_longest_draft(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the bits of single steps, also past trained lengths. Layers that take it otherwise are drafted less."""
    from mlx_lm.draft.model import longest_draft

    monkeypatch.setitem(CONFIGS, name, widened(CONFIGS[name]))
    model = build(name)
    if form == "4 bits":
        quantize(model)
    longest = longest_draft(model, "auto") + 1
    if name in ROUNDING:
        assert longest <= SHORT_BLOCK, f"{name} drafts {longest - 1} tokens, and its blocks round in another way"
        return
    if mx.default_device() != mx.cpu:
        pytest.skip("The kernels of this device are not row-identical.")
    block, step = make_cache(model), make_cache(model)
    for layers in (block, step):
        model(mx.array([LONG]), cache=layers)
    for n in (min(longest, SHORT_BLOCK + 1), longest):
        tokens = [(5 * i + n) % VOCAB for i in range(n)]
        snapshot_prompt_cache(block)
        got = model(mx.array([tokens]), cache=block)
        right = mx.concatenate([model(mx.array([[token]]), cache=step) for token in tokens], axis=1)
        if not mx.array_equal(got, right).item():
            broken(f"{name}, {form}: a block of {n} tokens is off by {mx.abs(got - right).max().item():.2g}")
