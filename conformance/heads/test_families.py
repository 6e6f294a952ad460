"""The heads that checkpoints bring, family by family, on tiny ones in their published form.

Right is what transformers computes where it knows the family, or else a reference of plain operations. Heads are asked
for a text in one piece and in parts, for what they draft from their own states, and for the text that comes of it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.draft import DraftOptions, DraftStats, HeadDraftStrategy, HeadedModel, load_head, save_head
from mlx_lm.generate import BatchGenerator, _merge_caches, generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache, snapshot_prompt_cache, trim_prompt_cache
from packaging.version import Version

from conformance.heads.forms import FORMS
from conformance.heads.published import write
from conformance.heads.recorded import LENGTH, LENGTHS, N_DRAFTED, TEXT, recorded
from conformance.heads.reference import Reference
from conformance.subjects.architectures import ROUNDING

pytestmark = pytest.mark.usefixtures("uncompiled")
TOLERANCE = 1e-4
CHECKPOINTS = TemporaryDirectory()
PARTS = [[0, LENGTH], [0, 1, 6, 17, 18, LENGTH], [*range(LENGTH + 1)]]
OPTIONS, N = {"num_draft_tokens": 3, "disable_adaptive_gate": True}, 24
families = pytest.mark.parametrize("family", FORMS)
# Blocks of these are not those of single tokens, to the last bit.
exact = pytest.mark.parametrize("family", [name for name in FORMS if FORMS[name].model not in ROUNDING])


@cache
def folder_of(family: str) -> Path:
    return write(family, Path(CHECKPOINTS.name) / family)


@cache
def reference_of(family: str) -> Reference:
    return Reference(family, folder_of(family))


@cache
def right(family: str, length: int = LENGTH) -> tuple[mx.array, mx.array]:
    """What a head gives back for each row of the text and for those that it drafts, and its logits."""
    return reference_of(family).drafts(TEXT[: length + 1], N_DRAFTED)


def loaded(family: str, folder: Path | None = None) -> tuple[Any, Any]:
    model = reference_of(family).model
    return model, load_head(model, folder or folder_of(family))


def computed(family: str, head: Any, places: list[int]) -> tuple[mx.array, mx.array, mx.array]:
    """The states that a head gives back, its likeliest tokens and their chances, for a text in parts and drafts."""
    hidden = mx.concatenate([reference_of(family).states(TEXT[:-1], which) for which in head.hidden_layers], axis=-1)
    tokens, caches, made, found = mx.array([TEXT[1:]]), head.make_cache(), [], []
    heads = [head, *getattr(head, "deeper", ())]
    n = len(caches) // len(heads)
    for i in range(N_DRAFTED + 1):
        if i < len(heads):
            one, of_one = heads[i], caches[i * n : i * n + n]
            parts = [one(tokens[:, start:end], hidden[:, start:end], of_one) for start, end in pairwise(places)]
            hidden = mx.concatenate(parts, axis=1)
        else:
            hidden = one(tokens[:, -1:], hidden[:, -1:], of_one)
        made.append(hidden[:, -1:] if i else hidden)
        found.append(one.likeliest(made[-1]))
        tokens = mx.concatenate([tokens[:, 1:], found[-1][0][:, -1:]], axis=1)
    following, chances = (mx.concatenate(of_rows, axis=1) for of_rows in zip(*found, strict=True))
    return mx.concatenate(made, axis=1), following, chances


def off(got: mx.array, wanted: mx.array) -> float:
    """The largest difference, by the largest value."""
    return float((mx.abs(got - wanted).max() / mx.abs(wanted).max()).item())


@pytest.mark.parametrize("family", [name for name in FORMS if recorded(name) is not None])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_reference_is_what_transformers_computes(family: str, length: int) -> None:
    assert off(right(family, length)[1][0], recorded(family, length)) < TOLERANCE


@families
@pytest.mark.parametrize("places", PARTS, ids=["whole", "parts", "tokens"])
def test_a_head_computes_what_is_right(family: str, places: list[int]) -> None:
    states, of_rows = right(family)
    of_others = recorded(family)
    likely = mx.softmax(of_rows[0] if of_others is None else of_others, axis=-1)
    got, tokens, chances = computed(family, loaded(family)[1], places)
    assert off(got, states) < TOLERANCE
    assert tokens[0].tolist() == mx.argmax(likely, axis=-1).tolist()
    assert off(chances[0], likely.max(axis=-1)) < 10 * TOLERANCE


@families
def test_drafts_are_what_is_right(family: str) -> None:
    """Of a prompt in pieces, after tokens that were fed, drafted from and dropped again."""
    headed = HeadedModel(*loaded(family))
    caches = headed.make_cache()
    for start, end in pairwise([0, 5, LENGTH - 1]):
        headed(mx.array([TEXT[start:end]]), caches)
    snapshot_prompt_cache(caches)
    headed(mx.array([[TEXT[LENGTH - 1], 9, 9]]), caches)
    headed.draft(mx.array([[9]]), caches, 1)
    assert trim_prompt_cache(caches, 2) == 2
    [drafted] = headed.draft(mx.array([TEXT[-1:]]), caches, N_DRAFTED + 1)
    likely = mx.softmax(right(family)[1][0, LENGTH - 1 :], axis=-1)
    assert list(drafted) == mx.argmax(likely, axis=-1).tolist()
    assert off(mx.array(drafted.likely), likely.max(axis=-1)) < 10 * TOLERANCE


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


def quantized(head: Any, bits: int) -> Any:
    nn.quantize(
        head, 32, bits, class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % 32 == 0
    )
    return head


@families
@pytest.mark.parametrize("bits", [0, 4, 8])
def test_a_head_is_kept(family: str, bits: int, tmp_path: Path) -> None:
    """Saved and loaded it computes the same, and with fewer bits what its rounded weights give."""
    head = loaded(family)[1]
    if bits:
        if Version(version("mlx")) < Version("0.32.3"):
            pytest.skip("the quantized experts of this release need a newer mlx")
        quantized(head, bits)
    wanted = computed(family, head, PARTS[1])
    save_head(head, tmp_path / "head")
    again = loaded(family, tmp_path / "head")[1]
    for a, b in zip(computed(family, again, PARTS[1]), wanted, strict=True):
        assert mx.array_equal(a, b)
    if bits:
        plain = loaded(family)[1]
        packed = [(name, part) for name, part in head.named_modules() if "scales" in part]
        assert packed
        rounded = [
            (f"{n}.weight", mx.dequantize(p.weight, p.scales, p.biases, p.group_size, p.bits)) for n, p in packed
        ]
        plain.load_weights(rounded, strict=False)
        assert off(wanted[0], computed(family, plain, PARTS[1])[0]) < 10 * TOLERANCE


@pytest.mark.contract("C4")
@exact
def test_the_text_is_that_of_plain_decoding(family: str) -> None:
    model, head = loaded(family)
    stats, prompt = DraftStats(), mx.array(TEXT)
    plain = [token for token, _ in generate_step(prompt, model, max_tokens=N)]
    headed, strategy = HeadedModel(model, head), HeadDraftStrategy()
    steps = speculative_generate_step(prompt, headed, draft=strategy, max_tokens=N, stats=stats, **OPTIONS)
    assert [token for token, *_ in steps] == plain
    assert stats.drafted > 0


@pytest.mark.contract("C10")
@exact
def test_the_texts_of_a_batch_are_those_of_plain_decoding(family: str) -> None:
    """Rows of different lengths, which leave and join, draft with one head."""
    model, head = loaded(family)
    prompts = [TEXT[start:] for start in (0, 9, 4, 17)]
    plain, _ = texts_of(model, prompts, [None] * 4)
    drafted, drafts = texts_of(HeadedModel(model, head), prompts, [HeadDraftStrategy() for _ in prompts])
    assert drafted == plain
    assert all(one.drafted > 0 for one in drafts), drafts


def texts_of(model: Any, prompts: list[list[int]], strategies: list[Any]) -> tuple[list[list[int]], list[DraftStats]]:
    batch = BatchGenerator(model, completion_batch_size=3, prefill_batch_size=2)
    planners = [s and DraftOptions(draft_strategy=s, **OPTIONS).make_planner(model, ()) for s in strategies]
    caches = [make_prompt_cache(model) for _ in prompts]
    uids = batch.insert(prompts, [N - 5 * i for i in range(len(prompts))], caches, planners=planners)
    texts: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := batch.next_generated():
        for response in responses:
            assert response.error is None
            texts[response.uid].append(response.token)
    batch.close()
    return list(texts.values()), [planner.stats for planner in planners if planner]
