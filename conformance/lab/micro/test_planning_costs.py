"""The cost of planning a token, and decoding with a draft model beside the release as it is: tox run -e micro

The suite runs each test once, without timing. No test asserts a time.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.draft import DraftStats, EditStrategy, Planner, device_costs
from mlx_lm.models import llama

from conformance.lab.micro.backward_scan import VOCAB, text
from conformance.series.patches import commits, unpack
from conformance.subjects.families import GENERATE

STREAMS = {"copies": 30_000, "few copies": 300}
PROMPT = [(7 * i + 3) % 1000 for i in range(64)]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("device", ["cpu-16bit", "cpu", "metal", "cuda"])
def test_plan_a_text(benchmark: Any, device: str, stream: str) -> None:
    """Decode 600 known tokens. Divide by that for the time of a token."""
    benchmark.group = f"plan 600 tokens, {stream}"
    tokens = [token % STREAMS[stream] for token in text(3000)]
    prompt, answer = (tokens, tokens[:600]) if stream == "copies" else (tokens[:2400], tokens[2400:])

    def decode() -> int:
        planner = Planner(EditStrategy(), 63, DraftStats(), device_costs(device))
        planner.vocab_size, n = VOCAB, 0
        planner.observe(prompt)
        while n < len(answer):
            ahead = planner.runs_ahead()
            draft = [] if ahead else planner.plan(len(answer) - n)
            n_right = 0
            while draft[n_right : n_right + 1] == answer[n + n_right : n + n_right + 1] != []:
                n_right += 1
            planner.accept(n_right)
            planner.observe(answer[n : n + n_right + 1])
            n += n_right + 1
        return n

    assert benchmark(decode) >= len(answer)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module mlx_lm.generate of the release without the series, beside the installed one."""
    folder = tmp_path_factory.mktemp("released")
    shutil.move(unpack(commits()[0], folder / "tree") / "mlx_lm", folder / "mlx_lm_as_released")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("mlx_lm_as_released.generate")
    for name in [name for name in sys.modules if name.startswith("mlx_lm_as_released")]:
        del sys.modules[name]


def model_of(layers: int, width: int, seed: int) -> llama.Model:
    mx.random.seed(seed)
    args = llama.ModelArgs("llama", width, layers, 2 * width, 4, 1e-5, 1024)
    model = llama.Model(args)
    mx.eval(model.parameters())
    return model


@pytest.mark.patched_source
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("tree", ["as released", "with the series"])
@pytest.mark.parametrize("n_draft", [2, 8])
@pytest.mark.parametrize("agrees", [True, False], ids=["agrees", "disagrees"])
def test_decode_with_a_draft_model(benchmark: Any, released: Any, agrees: bool, n_draft: int, tree: str) -> None:
    """The draft model is the model, or another one that is never right."""
    n = 96 if benchmark.enabled else 16
    benchmark.group = f"{n} tokens, {n_draft} draft tokens, a draft model that {'agrees' if agrees else 'disagrees'}"
    model = model_of(4, 256, 0)
    drafter = model if agrees else model_of(1, 64, 1)
    step: Callable[..., Any] = (released if tree == "as released" else GENERATE).speculative_generate_step

    def decode() -> list[int]:
        steps = step(mx.array(PROMPT), model, drafter, num_draft_tokens=n_draft, max_tokens=n)
        return [int(token) for token, *_ in steps]

    plain = [int(token) for token, _ in GENERATE.generate_step(mx.array(PROMPT), model, max_tokens=n)]
    assert benchmark.pedantic(decode, rounds=9 if benchmark.enabled else 1, warmup_rounds=1) == plain
