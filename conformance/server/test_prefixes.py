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

from conformance.doors.server.process import CHAT, Body, inside
from conformance.doors.server.requests import Request, Right, load
from conformance.oracle.findings import broken
from conformance.server.instruments import wait_for_rest
from conformance.server.sessions import Session, check_ends, message, talk
from conformance.server.traffic import GATE_OFF
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
# More checkpoints than a session has tokens.
OPTIONS = ("--prompt-cache-checkpoints", "999")
OFF = ("--prompt-cache-checkpoints", "0")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {name: str(save(name, folder, ENDED_TEMPLATE, **ENDED, **changes)) for name, changes in MODELS.items()}


@pytest.mark.parametrize("model", MODELS)
def test_a_session(right: Right, models: dict[str, str], model: str) -> None:
    """At most 1.3 times the new tokens are fed."""
    with inside() as server:
        plain = Session(server, right, models[model], {}, NOISE.get(model, 0.0))
        talk(plain)
    most = plain.new * (1 if model == "llama" else 1.3)
    if plain.fed > most:
        broken(f"{plain.fed} tokens are fed, {plain.new} are new and {most:.0f} are the most")


@pytest.mark.parametrize("model", MODELS)
def test_a_drafted_session(right: Right, models: dict[str, str], model: str) -> None:
    """With drafts and enough checkpoints, the last message end that is known is found."""
    with inside(*OPTIONS) as server:
        check_ends(Session(server, right, models[model], GATE_OFF, NOISE.get(model, 0.0)))


def test_a_session_that_is_quantized(models: dict[str, str]) -> None:
    options = [word for name, value in QUANTIZED.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with inside(*OPTIONS, *options) as server:
        check_ends(Session(server, Right(**QUANTIZED), models["lfm2"], {}))


@pytest.mark.parametrize("model", ["gemma3_text", "qwen3_next"])
def test_a_session_with_a_draft_model(right: Right, models: dict[str, str], model: str) -> None:
    """What the draft model has read goes back with what the model has read."""
    with inside(*OPTIONS, "--draft-model", models["gemma3_text"], model=models[model]) as server:
        check_ends(Session(server, right, models[model], {}, NOISE.get(model, 0.0), by="ModelDraftStrategy"))


@pytest.mark.parametrize("model", ["qwen3_next", "lfm2"])
def test_without_checkpoints(right: Right, models: dict[str, str], model: str) -> None:
    """As in the release, a prompt goes on from a whole one, or is fed again."""
    with inside(*OFF) as server:
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


def conversation(rng: random.Random) -> list[Message]:
    """Each message is one of a few, and may end early, so that conversations differ at any place."""
    found = [message("system", 60, rng.randrange(3))]
    for turn in range(rng.randrange(1, 4)):
        one = message(("user", "assistant")[turn % 2], 30, 10 * turn + rng.randrange(3))
        found.append(one | {"content": one["content"][: rng.choice([20, 30])]})
    return [*found, message("user", 10, rng.randrange(5))]


def request(rng: random.Random) -> Request:
    alone: Body = {"seed": 1} if rng.random() < 0.3 else {}
    return Request(CHAT, {"messages": conversation(rng), "max_tokens": 2, **alone})


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
