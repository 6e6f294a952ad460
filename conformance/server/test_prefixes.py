"""A prompt that begins as an earlier one goes on from there, and is answered as by a server that never saw one.

The conversations are those of agents and editors: a turn is edited, thinking is left out, the output of a tool is
replaced, a question is asked again. CONFORMANCE_PROFILE=full sends 500 requests for each limit of the memory.
"""

from __future__ import annotations

import os
import random
from typing import Any

import mlx.core as mx
import pytest

from conformance.doors.server.process import Body, inside
from conformance.doors.server.requests import Right, load
from conformance.oracle.findings import broken
from conformance.server.instruments import wait_for_rest
from conformance.server.traffic import GATE_OFF, Session, check_ends, message, talk
from conformance.subjects.prompts import Message
from conformance.subjects.tiny import ENDED, ENDED_TEMPLATE, save

pytestmark = pytest.mark.contract("C11")

# llama has no windows, so that it feeds nothing but what is new. Keys of lfm2 have 32 numbers, as quantizing needs.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"layer_types": None, "sliding_window": None, "head_dim": 32},
    "gemma3_text": {},
    "qwen3_next": {},
    "lfm2": {"num_attention_heads": 2, "num_key_value_heads": 1},
}
# Attention over a window adds up in another order if a chunk begins elsewhere.
NOISE = {"gemma3_text": 1e-5}
# A prompt is read token by token: what is read before its end is quantized in any case.
QUANTIZED = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0, "prefill_step_size": 1}
QUANTIZE = [word for name, value in QUANTIZED.items() for word in (f"--{name.replace('_', '-')}", str(value))]
NO_DRAFTS = ["--draft-type", "none"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {name: str(save(name, folder, ENDED_TEMPLATE, **ENDED, **changes)) for name, changes in MODELS.items()}


@pytest.mark.parametrize(
    ("model", "how"),
    [
        *((model, "plain") for model in MODELS),
        *((model, "drafted") for model in MODELS),
        # What the draft model has read goes back with what the model has read.
        ("gemma3_text", "draft model"),
        ("qwen3_next", "draft model"),
        ("lfm2", "quantized"),
    ],
    ids=lambda name: name.replace(" ", "_"),
)
def test_a_session(right: Right, models: dict[str, str], model: str, how: str) -> None:
    """At most 1.3 times the new tokens are fed. With enough checkpoints, the last known message end is found."""
    more = {"quantized": [*NO_DRAFTS, *QUANTIZE], "draft model": ["--draft-model", models["gemma3_text"]]}
    # More checkpoints than a session has tokens.
    options = ["--prompt-cache-checkpoints", "999"] if how != "plain" else []
    with inside(*options, *more.get(how, NO_DRAFTS), model=models[model]) as server:
        draft = GATE_OFF if how == "drafted" else {}
        by = "model" if how == "draft model" else "none"
        answers = Right(**QUANTIZED) if how == "quantized" else right
        session = Session(server, answers, models[model], draft, NOISE.get(model, 0.0), by)
        (talk if how == "plain" else check_ends)(session)
    most = session.new * (1 if model == "llama" else 1.3)
    if how == "plain" and session.fed > most:
        broken(f"{session.fed} tokens are fed, {session.new} are new and {most:.0f} are the most")


@pytest.mark.parametrize("model", ["qwen3_next", "lfm2"])
def test_without_checkpoints(right: Right, models: dict[str, str], model: str) -> None:
    """As in the release, a prompt goes on from a whole one, or is fed again."""
    with inside("--prompt-cache-checkpoints", "0", *NO_DRAFTS) as server:
        session = Session(server, right, models[model], {}, NOISE.get(model, 0.0))
        asked = [message("user", 60, 1)]
        asked += session.ask(asked)
        asked += [message("tool", 60, 2)]
        session.ask(asked)
        session.ask([*asked[:-1], message("tool", 60, 3)])
        asked[0] = {"role": "user", "content": asked[0]["content"][:40]}
        session.ask(asked)
    assert session.found == [0, len(session.known[0]), len(session.known[0]), 0]


N = 500 if os.environ.get("CONFORMANCE_PROFILE") == "full" else 99
CLIENTS = 3
# One prompt with few checkpoints, a few prompts, and many.
LIMITS = (400_000, 1_500_000, 6_000_000)
# mlx leaves an array up to 16 KiB of a longer buffer. The small states of a recurrent layer may have that, not its
# large ones of 64 KiB.
SLACK = 0.25
LARGE = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}


def request(rng: random.Random) -> Body:
    """Each message is one of a few, and may end early, so that conversations differ at any place."""
    said: list[Message] = [message("system", 60, rng.randrange(3))]
    for turn in range(rng.randrange(1, 4)):
        one = message(("user", "assistant")[turn % 2], 30, 10 * turn + rng.randrange(3))
        said.append(one | {"content": one["content"][: rng.choice([20, 30])]})
    alone: Body = {"seed": 1} if rng.random() < 0.3 else {}
    return {"messages": [*said, message("user", 10, rng.randrange(5))], "max_tokens": 2, **alone}


@pytest.mark.parametrize("limit", LIMITS)
def test_the_memory_stays_within_its_limit(tmp_path_factory: pytest.TempPathFactory, limit: int) -> None:
    """By the count of --prompt-cache-bytes, and by that of mlx."""
    model = save("qwen3_next", tmp_path_factory.mktemp("model"), ENDED_TEMPLATE, **ENDED, **LARGE)
    rng, counted = random.Random(limit), 0
    with inside("--prompt-cache-size", "100", "--prompt-cache-bytes", str(limit), model=model) as server:
        wait_for_rest(server)
        before = mx.get_active_memory()
        for _ in range(N // CLIENTS):
            answers = load(server, [request(rng) for _ in range(CLIENTS)], CLIENTS)
            assert {answer.status for answer in answers} == {200}
            wait_for_rest(server)
            now, used = server.generator.prompt_cache.nbytes, mx.get_active_memory() - before
            counted = max(counted, now)
            if now > limit or used > (1 + SLACK) * limit:
                broken(f"{used} bytes are used and {now} counted, where {limit} are the most")
    assert counted > 0.9 * limit, f"the limit is not reached: {counted} of {limit}"
