"""A seed of a request gives the text that the library decodes with it.

The library decodes in this process, and knows nothing of the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import load, stream_generate
from mlx_lm.sample_utils import make_sampler

from conformance import FIXTURE
from conformance.testing.faults.server import act_as_seed_zero, planted
from conformance.testing.server.clients import GATE_OFF
from conformance.testing.server.process import FAST, TEXT, Server, serve
from conformance.testing.server.traffic import Body, Request, send

pytestmark = pytest.mark.usefixtures("uncompiled")

PROMPT, N_TOKENS = "def total(rows):\n    ", 24
# OpenAI's seeds have a sign, those of MLX have none.
SEEDS = [0, 1, 7, 2**31, 2**63, -1]
SAMPLING: Body = {"temperature": 1.5, "top_p": 0.9}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(env=FAST) as server:
        yield server


def decoded(seed: int) -> str:
    model, tokenizer = load(str(FIXTURE))[:2]
    mx.random.seed(seed % 2**64)
    sampler = make_sampler(SAMPLING["temperature"], SAMPLING["top_p"])
    steps = stream_generate(model, tokenizer, PROMPT, max_tokens=N_TOKENS, sampler=sampler)
    return "".join(step.text for step in steps)


def check_seeds(server: Server, draft: Body) -> None:
    texts = {seed: decoded(seed) for seed in SEEDS}
    assert len(set(texts.values())) == len(SEEDS), "the seeds cannot be told apart"
    for seed, text in texts.items():
        body = {"prompt": PROMPT, "max_tokens": N_TOKENS, "seed": seed, **SAMPLING}
        for _ in range(2):  # The second prompt is cached.
            assert send(server, Request(TEXT, body, draft)).text == text, f"another text for the seed {seed}"


WAYS = pytest.mark.parametrize("draft", [{}, GATE_OFF], ids=["plain", "drafted"])


@WAYS
def test_seeds_are_those_of_the_library(server: Server, draft: Body) -> None:
    check_seeds(server, draft)


@pytest.mark.planted
@WAYS
def test_a_seed_that_is_ignored_is_found(tmp_path: Path, draft: Body) -> None:
    env = FAST | planted(act_as_seed_zero, tmp_path)
    with serve(env=env) as server, pytest.raises(AssertionError, match="another text for the seed 1"):
        check_seeds(server, draft)
