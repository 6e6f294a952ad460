"""The heads that checkpoints bring, family by family, on tiny ones in their published form.

Right is what a reference of plain operations computes, and transformers where it knows the family. Heads are asked what
they draft from a text in parts and from their own states, and for the text that comes of it.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import HeadDraftStrategy, HeadedModel, load_head, save_head
from mlx_lm.generate import _merge_caches
from mlx_lm.models.cache import snapshot_prompt_cache, trim_prompt_cache

from conformance.heads.forms import FORMS
from conformance.heads.published import write
from conformance.heads.reference import LENGTH, LENGTHS, N_DRAFTED, TEXT, Reference, recorded
from conformance.oracle.rows import FREE, Plain, Rows
from conformance.subjects.architectures import ROUNDING, quantize

pytestmark = pytest.mark.usefixtures("uncompiled")
TOLERANCE = 1e-4
CHECKPOINTS = TemporaryDirectory()
N = 24
families = pytest.mark.parametrize("family", FORMS)


@cache
def folder_of(family: str) -> Path:
    return write(family, Path(CHECKPOINTS.name) / family)


@cache
def reference_of(family: str) -> Reference:
    return Reference(family, folder_of(family))


@cache
def right(family: str, length: int = LENGTH) -> mx.array:
    """The logits of a head for each row of the text and for those that it drafts."""
    return reference_of(family).drafts(TEXT[: length + 1], N_DRAFTED)


def loaded(family: str, folder: Path | None = None) -> tuple[Any, Any]:
    model = reference_of(family).model
    return model, load_head(model, folder or folder_of(family))


def off(got: mx.array, wanted: mx.array) -> float:
    """The largest difference, by the largest value."""
    return float((mx.abs(got - wanted).max() / mx.abs(wanted).max()).item())


@pytest.mark.parametrize("family", [name for name in FORMS if recorded(name) is not None])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_reference_is_what_transformers_computes(family: str, length: int) -> None:
    assert off(right(family, length), recorded(family, length)) < TOLERANCE


def check(drafted: Any, likely: mx.array) -> None:
    """The likeliest token of each row, and its chance."""
    assert list(drafted) == mx.argmax(likely, axis=-1).tolist()
    assert off(mx.array(drafted.likely), likely.max(axis=-1)) < 10 * TOLERANCE


@families
def test_drafts_are_what_is_right(family: str) -> None:
    """Of a prompt in parts, after each of them, and after tokens that were fed, drafted from and dropped again."""
    headed, likely = HeadedModel(*loaded(family)), mx.softmax(right(family), axis=-1)
    caches = headed.make_cache()
    for start, end in pairwise([0, 1, 6, 17, 18, LENGTH - 1]):
        headed(mx.array([TEXT[start:end]]), caches)
        check(headed.draft(mx.array([[TEXT[end]]]), caches, 1)[0], likely[end - 1 : end])
    snapshot_prompt_cache(caches)
    headed(mx.array([[TEXT[LENGTH - 1], 9, 9]]), caches)
    headed.draft(mx.array([[9]]), caches, 1)
    assert trim_prompt_cache(caches, 2) == 2
    check(headed.draft(mx.array([TEXT[-1:]]), caches, N_DRAFTED + 1)[0], likely[LENGTH - 1 :])


@families
def test_logits_are_what_is_right(family: str) -> None:
    """Also where one token is so likely that its chance shows nothing, as with ernie4_5_moe."""
    head = loaded(family)[1]
    hidden = head(mx.array([TEXT[1:]]), reference_of(family).states(TEXT[:-1]), head.make_cache())
    assert off(head.logits(hidden)[0], right(family)[:LENGTH]) < TOLERANCE


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_5", "step3p5"])
def test_rows_of_a_batch_are_drafted_as_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of different lengths, of which the head has read one, a few tokens at a time and twice in a row."""
    headed, ends = HeadedModel(*loaded(family)), (LENGTH, 7)
    rows = [headed.make_cache() for _ in ends]
    for end, caches in zip(ends, rows, strict=True):
        headed(mx.array([TEXT[:end]]), caches)
    following = mx.array([[TEXT[end]] for end in ends])
    alone = [headed.draft(one[None], caches, 2)[0] for one, caches in zip(following, rows, strict=True)]
    rows[1] = headed.make_cache()
    headed(mx.array([TEXT[: ends[1]]]), rows[1])
    batch = _merge_caches(rows)
    monkeypatch.setattr("mlx_lm.draft.head.CATCH_UP", 5)
    for _ in range(2):
        drafted = headed.draft(following, batch, 2)
        assert drafted == alone
        assert off(mx.array([d.likely for d in drafted]), mx.array([d.likely for d in alone])) < 10 * TOLERANCE


def drafted(family: str, head: Any) -> Any:
    headed = HeadedModel(reference_of(family).model, head)
    caches = headed.make_cache()
    headed(mx.array([TEXT[:-1]]), caches)
    return headed.draft(mx.array([TEXT[-1:]]), caches, N_DRAFTED + 1)[0]


@families
@pytest.mark.parametrize("bits", [0, 4, 8])
def test_a_head_is_kept(family: str, bits: int, tmp_path: Path) -> None:
    """Saved and loaded it drafts the same, and with fewer bits what its rounded weights give."""
    head, plain = loaded(family)[1], loaded(family)[1]
    if bits:
        quantize(head, bits)
        packed = [(name, part) for name, part in head.named_modules() if "scales" in part]
        assert packed
        parts = ((n, (p.weight, p.scales, p.biases, p.group_size, p.bits)) for n, p in packed)
        plain.load_weights([(f"{n}.weight", mx.dequantize(*part)) for n, part in parts], strict=False)
    wanted = drafted(family, head)
    save_head(head, tmp_path / "head")
    again, rounded = drafted(family, loaded(family, tmp_path / "head")[1]), drafted(family, plain)
    assert (again, again.likely) == (wanted, wanted.likely)
    assert rounded == wanted
    assert rounded.likely == pytest.approx(wanted.likely, rel=10 * TOLERANCE)


# Blocks of the others are not those of single tokens, to the last bit.
@pytest.mark.contract("C10")
@pytest.mark.parametrize("family", [name for name in FORMS if FORMS[name].model not in ROUNDING])
def test_the_texts_of_a_batch_are_those_of_plain_decoding(family: str) -> None:
    """Rows of different lengths, which leave and join, draft with one head."""
    model, head = loaded(family)
    batch = Rows(Plain(HeadedModel(model, head)), completion_batch_size=3, prefill_batch_size=2, draft_costs=FREE)
    rows = [Plain(model).ask(TEXT[i:], N - i, strategy=HeadDraftStrategy()) for i in (0, 4, 9, 17)]
    batch.finish(*rows)
    assert all(row.stats.drafted > 0 for row in rows), [row.stats for row in rows]
