"""A head where rows of a batch share it, where a prompt goes back to a checkpoint, and with published weights."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.draft import BlockCosts, DraftStats, EditStrategy, HeadDraftStrategy, HeadedModel
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models import mimo

from conformance.contracts.c11_prefixes import sessions
from conformance.drafters import Head
from conformance.oracle.compare import most
from conformance.oracle.heads import held
from conformance.oracle.rows import FREE, Plain, Rows
from conformance.oracle.run import Case, N
from conformance.pages import DRAFTING, text_of
from conformance.subjects.architectures import make_cache
from conformance.subjects.decoded import FAMILIES, model_of, prompt_of

pytestmark = pytest.mark.usefixtures("uncompiled")
OF = {family.name: family for family in FAMILIES}
COSTS = BlockCosts((1, 2, 16), (1.0, 1.2, 3.0))
# Those of MiMo-7B, whose head has these names besides those that each layer of the model has.
ARGS, PREFIX = mimo.ModelArgs("mimo", 64, 3, 128, 4, 1e-5, 64, 2), "model.mtp_layers.0."
NAMES = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")


@pytest.mark.contract("C10")
@pytest.mark.parametrize("name", ["llama", "qwen3_next", "falcon_h1", "gemma3_text"])
def test_rows_share_a_head(name: str) -> None:
    """In a batch that is smaller than they are many, a third of them without drafts, and a third gated."""
    case = Case(OF[name])
    plain = Plain(HeadedModel(model_of(case.family), Head([*case.prompt, *case.plain().tokens], wrong=3)))
    options = {"draft_costs": FREE, "completion_batch_size": 3, "prefill_batch_size": 2}
    batch = Rows(plain, lambda _, distance, scale: distance <= scale * most(case.family), **options)
    rows = [plain.ask([*case.prompt[i:], 3 * i], N - 3 * i) for i in range(5)]
    for i, row in enumerate(rows):
        if i % 3 < 2:
            row.strategy, row.costs = HeadDraftStrategy(EditStrategy()), COSTS if i % 3 else None
            row.strategy.attach(plain.model)
    batch.insert(*rows)
    batch.finish()
    for row in rows:
        if (tokens := held(plain.model, row.last.prompt_cache)[0]) != row.last.all_tokens:
            row.broken(f"the head holds {tokens}, not {row.last.all_tokens}")
        assert row.strategy is None or row.stats.drafted


@pytest.mark.contract("C11")
@pytest.mark.parametrize("name", ["qwen3_next", "gemma3_text"])
def test_a_head_goes_back(name: str) -> None:
    """The cache of both at a checkpoint is as if they had seen nothing else."""
    plain = sessions.Session(name, model_of(OF[name]))
    headed = HeadedModel(plain.model, Head(plain.cold(tuple(sessions.PROMPT), sessions.ANSWER).text))
    session = sessions.Session(name, headed)

    def drafts(_: list[int]) -> dict[str, Any]:
        return {"draft_strategy": HeadDraftStrategy(), "num_draft_tokens": 3, "disable_adaptive_gate": True}

    text = session.ask(sessions.PROMPT, drafts).text
    for one in session.ask_edits(text, (11, 17, 48, 70), drafts):
        fresh = make_cache(headed)
        headed(mx.array([one.text]), cache=fresh)
        (tokens, shown), (others, right) = held(headed, one.cache), held(headed, fresh)
        assert tokens == others == one.text, f"back to {one.found} tokens: the head holds {tokens}, not {one.text}"
        assert shown == pytest.approx(right, abs=2e-3)


@pytest.mark.contract("C4")
def test_a_checkpoint_head() -> None:
    """As docs/drafting.md brings it to the interface, with random values for its weights."""
    mx.random.seed(0)
    model = mimo.Model(ARGS)
    weights = dict(tree_flatten(model.parameters()))
    layer = {name.removeprefix("model.layers.0."): w.shape for name, w in weights.items() if ".layers.0." in name}
    shapes = layer | {f"{name}.weight": (64, 128) if name == "input_proj" else (64,) for name in NAMES}
    of_head = {name: 0.1 * mx.random.normal(shape) for name, shape in shapes.items()}
    [code] = re.findall(r"<!-- head -->\n(.*?)<!-- end head -->", text_of(DRAFTING), re.DOTALL)
    made: dict[str, Any] = {}
    exec(dedent(code), made)
    head = made["MiMoHead"](model, weights | {PREFIX + name: weight for name, weight in of_head.items()})
    # Each weight of the head has its place, and its value.
    found = dict(tree_flatten(head.parameters()))
    assert found.keys() == of_head.keys()
    assert all(mx.array_equal(found[name], weight) for name, weight in of_head.items())
    # The norm of the model stands behind what the head takes.
    seen = mx.array([[1]]), mx.random.normal((1, 1, 64))
    before = head(*seen, head.make_cache())
    model.model.norm.weight = mx.random.normal((64,))
    assert mx.array_equal(head(*seen, head.make_cache()), before)
    stats, prompt = DraftStats(), mx.array(prompt_of(21))
    # Those of its weights in fp32 leave no block that pays.
    vars(model)["_block_costs"] = {None: COSTS}
    plain = [token for token, _ in generate_step(prompt, model, max_tokens=N)]
    steps = speculative_generate_step(prompt, model, max_tokens=N, stats=stats, draft_model=head, num_draft_tokens=3)
    assert [token for token, *_ in steps] == plain
    assert stats.drafted > 0
