"""A prompt that begins as an earlier one goes on from there, and is answered as by a server that never saw one.

The conversations are those of agents and editors: a turn is edited, thinking is left out, the output of a tool is
replaced, a question is asked again. With any drafts the next request finds the answer cached.
CONFORMANCE_PROFILE=full asks more models.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance.doors.server.process import inside
from conformance.doors.server.requests import Right
from conformance.oracle.findings import broken
from conformance.oracle.profiles import FULL
from conformance.server.traffic import GATE_OFF, Session, check_ends, talk
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
def ended_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {name: str(save(name, folder, ENDED_TEMPLATE, **ENDED, **changes)) for name, changes in MODELS.items()}


SESSIONS = [("llama", "plain"), ("qwen3_next", "plain"), *((model, "drafted") for model in MODELS if model != "llama")]
# What the draft model has read goes back with what the model has read.
SESSIONS += [("qwen3_next", "draft_model"), ("lfm2", "quantized")]
REST = [("llama", "drafted"), ("gemma3_text", "plain"), ("lfm2", "plain"), ("gemma3_text", "draft_model")]


@pytest.mark.parametrize(("model", "how"), SESSIONS + REST * FULL)
def test_a_session(right: Right, ended_models: dict[str, str], model: str, how: str) -> None:
    """At most 1.3 times the new tokens are fed. With enough checkpoints, answers and ends of messages are found."""
    by_model = ["--draft-model", ended_models["gemma3_text"]]
    options = by_model if how == "draft_model" else NO_DRAFTS + QUANTIZE * (how == "quantized")
    # More checkpoints than a session has tokens.
    options = [*options, *(["--prompt-cache-checkpoints", "999"] if how != "plain" else [])]
    with inside(*options, model=ended_models[model]) as server:
        draft = GATE_OFF if how == "drafted" else {}
        by = "model" if how == "draft_model" else "none"
        answers = Right(**QUANTIZED) if how == "quantized" else right
        session = Session(server, answers, ended_models[model], draft, NOISE.get(model, 0.0), by)
        (talk if how == "plain" else check_ends)(session)
    most = session.new * (1 if model == "llama" else 1.3)
    if how == "plain" and session.fed > most:
        broken(f"{session.fed} tokens are fed, {session.new} are new and {most:.0f} are the most")
