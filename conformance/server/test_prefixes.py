"""A prompt that begins as an earlier one goes on from there, and is answered as by a server that never saw one.

The conversations are those of agents and editors: a turn is edited, thinking is left out, the output of a tool is
replaced, a question is asked again. However an answer ended, and with what drafts, the next request finds it cached.
CONFORMANCE_PROFILE=full asks more models.
"""

from __future__ import annotations

import json
import string
from itertools import product
from typing import Any

import pytest

from conformance.doors.server.process import Body, inside
from conformance.doors.server.requests import Right, judge_all, load
from conformance.oracle.findings import broken, not_shown
from conformance.oracle.profiles import FULL
from conformance.server.traffic import CODE, EDITS, GATE_OFF, Session, check_ends, talk
from conformance.subjects.prompts import fenced
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
    """At most 1.3 times the new tokens are fed. With enough checkpoints, the last known message end is found."""
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


# How answers end: after so many tokens, or at a stop word or its place in the text. Those of the fixture begin or end
# inside a token, or have several, or are a part of one. The last one ends by itself.
OF_RANDOM_MODELS: list[Any] = [("max_tokens", 5), ("max_tokens", 17), ("stop", 20), ("stop", 22)]
OF_THE_FIXTURE: list[Any] = [
    ("max_tokens", 30),
    *(("stop", ["zzz", word]) for word in ("ount", "rows:\n", "lue >")),
    ("stop", "append"),
    ("", ""),
]


def prompt_of(model: str, i: int) -> str:
    """No two have a common prefix. All are longer than the sliding window of the model that has one."""
    if model == "fixture":
        return f"<|user|>{i}. {EDITS[0]}\n{fenced(CODE)}<|end|><|assistant|>"
    letters = string.ascii_letters[i:] + string.ascii_letters[:i]
    return letters[:20] + letters[3:9] + letters[:7]


def nearly(answer: str, every: int) -> Body:
    """Predict the answer with a wrong character at intervals, so that drafts are right up to many different places."""
    text = "".join("0" if i % every == 7 else c for i, c in enumerate(answer))
    prediction = {"type": "content", "content": text}
    return {"prediction": prediction, "disable_adaptive_gate": True, "num_draft_tokens": 6}


def word_at(answer: str, place: int) -> str:
    """A text that occurs at this place of the answer for the first time."""
    return next(answer[place:end] for end in range(place + 1, len(answer)) if answer.find(answer[place:end]) == place)


@pytest.mark.contract("C3")
@pytest.mark.parametrize(
    ("model", "how"),
    [*product(("fixture", "gemma3_text"), ("alone", "batched")), ("qwen3_next", "alone")],
)
def test_drafts_lower_nothing(right: Right, models: dict[str, str], model: str, how: str) -> None:
    """A drafted answer and all that ends it are cached, and its prompt is for a request that leaves it at its end."""
    firsts, following = list[Body](), list[Body]()
    for i, (field, value) in enumerate(OF_THE_FIXTURE if model == "fixture" else OF_RANDOM_MODELS):
        body: Body = {"model": models[model], "prompt": prompt_of(model, i), "max_tokens": 60, "stream": i % 3 == 0}
        body |= {"seed": 1} if how == "alone" else {}
        whole = right(body).text
        if isinstance(value, int) and field == "stop":
            value = word_at(whole, value)
        draft = nearly(whole, 47 if model == "fixture" else 7 + 2 * i)
        firsts.append(body | draft | ({field: value} if field else {}))
        short = body | {"max_tokens": 12}
        following.append(short | {"prompt": f"{body['prompt']}abc"})
        following.append(short | {"prompt": f"{body['prompt']}{whole}abc"} | (draft if i % 2 else {}))
    with inside(*NO_DRAFTS, "--prompt-cache-size", "200") as server:
        judge_all(firsts, answers := load(server, firsts, len(firsts)), right)
        judge_all(following, later := load(server, following, 1), right)
    for first, answer, left, went_on in zip(firsts, answers, later[::2], later[1::2], strict=True):
        # What goes on from an answer that ended by itself has no end token there.
        ended_itself = answer.finish_reason == "stop" and "stop" not in first
        prompt = answer.usage["prompt_tokens"]
        counted = prompt + answer.usage["completion_tokens"] - ended_itself
        # A cache that cannot go back has a state before the last token of the prompt.
        if left.cached_tokens < prompt - 1 or went_on.cached_tokens != counted:
            found = f"{left.cached_tokens} and {went_on.cached_tokens} tokens are cached"
            broken(f"{found} instead of {prompt} and {counted}", json.dumps(first))
    if (accepted := sum(answer.draft["accepted"] for answer in answers)) <= 20:
        not_shown(f"{accepted} drafted tokens are accepted")
