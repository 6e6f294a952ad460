"""A prompt that begins as an earlier one goes on from there, and is answered as by a server that never saw one.

The conversations are those of agents and editors: a turn is edited, thinking is left out, the output of a tool is
replaced, a question is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.doors.server.clients import GATE_OFF, Reference
from conformance.doors.server.process import FAST, Server, serve
from conformance.doors.server.sessions import Session, check_ends, message, talk
from conformance.doors.server.traffic import Body
from conformance.server.prefix_faults import (
    go_on_in_the_checkpoint,
    note_a_token_too_many,
    take_none_with_drafts,
    take_over_all_checkpoints,
)
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
QUANTIZED = ("--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "0", "--prefill-step-size", "1")
# More checkpoints than a session has tokens.
OPTIONS = ("--prompt-cache-checkpoints", "999")
OFF = ("--prompt-cache-checkpoints", "0")
COLD = ("--prompt-cache-size", "0", *OFF)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: save(name, folder, ENDED_TEMPLATE, **ENDED, **changes) for name, changes in MODELS.items()}


@pytest.fixture(scope="module")
def cold() -> Iterator[Reference]:
    """The answers of a server that keeps nothing."""
    with serve(*COLD, env=FAST) as server:
        yield Reference(server)


@pytest.mark.parametrize("model", MODELS)
def test_a_session(cold: Reference, models: dict[str, Path], model: str) -> None:
    """At most 1.3 times the new tokens are fed. With drafts, the last message end that is known is found."""
    with serve(env=FAST) as server:
        plain = Session(server, cold, models[model], {}, NOISE.get(model, 0.0))
        talk(plain)
    assert plain.fed <= plain.new * (1 if model == "llama" else 1.3)
    with serve(*OPTIONS, env=FAST) as server:
        check_ends(Session(server, cold, models[model], GATE_OFF, NOISE.get(model, 0.0)))


def test_a_session_that_is_quantized(models: dict[str, Path]) -> None:
    with serve(*COLD, *QUANTIZED, env=FAST) as alone, serve(*OPTIONS, *QUANTIZED, env=FAST) as server:
        check_ends(Session(server, Reference(alone), models["lfm2"], {}))


@pytest.mark.parametrize("model", ["gemma3_text", "qwen3_next"])
def test_a_session_with_a_draft_model(cold: Reference, models: dict[str, Path], model: str) -> None:
    """What the draft model has read goes back with what the model has read."""
    with serve(*OPTIONS, "--draft-model", str(models["gemma3_text"]), model=models[model], env=FAST) as server:
        check_ends(Session(server, cold, models[model], {}, NOISE.get(model, 0.0)))


@pytest.mark.parametrize("model", ["qwen3_next", "lfm2"])
def test_without_checkpoints(cold: Reference, models: dict[str, Path], model: str) -> None:
    """As in the release, a prompt goes on from a whole one, or is fed again."""
    with serve(*OFF, env=FAST) as server:
        session = Session(server, cold, models[model], {}, NOISE.get(model, 0.0))
        asked = [message("user", 60, 1)]
        asked += session.ask(asked)
        asked += [message("tool", 60, 2)]
        session.ask(asked)
        session.ask([*asked[:-1], message("tool", 60, 3)])
        asked[0] = {"role": "user", "content": asked[0]["content"][:40]}
        session.ask(asked)
    assert session.found == [0, len(session.known[0]), len(session.known[0]), 0]


FAULTS: list[tuple[Callable[[], None], Body]] = [
    *((fault, {}) for fault in (note_a_token_too_many, go_on_in_the_checkpoint, take_over_all_checkpoints)),
    (take_none_with_drafts, GATE_OFF),
]


@pytest.mark.planted
@pytest.mark.parametrize(("broken", "draft"), FAULTS, indirect=["broken"])
def test_a_wrong_checkpoint_is_found(broken: Server, cold: Reference, models: dict[str, Path], draft: Body) -> None:
    with pytest.raises(AssertionError):
        check_ends(Session(broken, cold, models["qwen3_next"], draft))
