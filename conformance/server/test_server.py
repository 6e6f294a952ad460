"""A server with drafting gives the same texts as one without, also with other clients.

The right text comes from a separate server that serves the request alone, without drafting and without a prompt cache.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import stream_generate
from mlx_lm.draft import NgramModTable
from mlx_lm.sample_utils import make_sampler

from conformance import FIXTURE
from conformance.doors.programs import run
from conformance.doors.server.clients import EDIT, GATE_OFF, SHORT, Reference
from conformance.doors.server.process import CHAT, FAST, TEXT, Server, planted, serve
from conformance.doors.server.traffic import Body, Request, send
from conformance.server.server_endings import ENDINGS, check_the_next_request
from conformance.subjects.prompts import PROMPTS, chat
from conformance.subjects.tiny import save
from conformance.testing.faults.batch import leave_the_last_block
from conformance.testing.faults.server import (
    act_as_seed_zero,
    let_any_number_through,
    save_often,
    share_predictions,
    store_a_token_too_many,
)

OPTIONS = ("--prompt-cache-size", "30")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(*OPTIONS, env=FAST) as server:
        yield server


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The fixture, a model with a sliding window, and a hybrid one."""
    folder = tmp_path_factory.mktemp("models")
    return {"fixture": FIXTURE, **{name: save(name, folder) for name in ("gemma3_text", "qwen3_next")}}


@pytest.mark.parametrize("model", ENDINGS)
def test_the_next_request_after_an_ending(
    server: Server, right: Reference, models: dict[str, Path], model: str
) -> None:
    check_the_next_request(server, right, model, models[model])


def test_the_next_request_after_a_system_prompt(server: Server, right: Reference, models: dict[str, Path]) -> None:
    """A hybrid model cannot trim back to the end of a system prompt, so its state there is kept."""
    system = {"role": "system", "content": "abcdefghijklmnopqrstuvwxyz"}
    for question, cached in (("ABC", 0), ("XYZ", 27)):
        body: Body = {"model": str(models["qwen3_next"]), "messages": [system, *chat(question)], "max_tokens": 12}
        answer = send(server, Request(CHAT, body, {"prediction": predicted(right(Request(CHAT, body)).text)}))
        assert answer.text == right(Request(CHAT, body)).text
        assert answer.cached_tokens == cached


@pytest.mark.planted
@pytest.mark.parametrize("broken", [leave_the_last_block, store_a_token_too_many], indirect=True)
def test_a_wrong_prefix_is_found(broken: Server, right: Reference, models: dict[str, Path]) -> None:
    """The fault is found with every model, so stop words do fall inside accepted drafts."""
    for name, path in models.items():
        with pytest.raises(AssertionError, match="another text"):
            check_the_next_request(broken, right, name, path)


def predicted(text: str) -> Body:
    return {"type": "content", "content": text}


MOD: Body = {"draft_type": "ngram-mod", "ngram_size": 6, "disable_adaptive_gate": True}
MOD_OPTIONS = ["--draft-type", "ngram-mod", "--ngram-size", "6", "--disable-adaptive-gate"]
ASK = Request(CHAT, {"messages": EDIT, "max_tokens": 100})
# Parts of its answer are not in the prompt.
CALL = Request(CHAT, {"messages": PROMPTS["tool"], "max_tokens": 100})


def accepted(server: Server, right: Reference, draft: Body | None = None, ask: Request = ASK) -> int:
    """The number of accepted tokens for a request. Its text is right."""
    answer = send(server, Request(ask.path, ask.body, draft or {}))
    assert answer.text == right(ask).text
    return int(answer.draft["accepted"])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_memory_is_kept(right: Reference, tmp_path: Path, end: signal.Signals) -> None:
    """A server that loads a memory accepts more than the one that made it, however that one ended."""
    file = tmp_path / "memory"
    options = [*MOD_OPTIONS, "--draft-memory", str(file)]
    often = planted(save_often, tmp_path) if end == signal.SIGKILL else {}
    with serve(*options, env=FAST | often) as server:
        cold = accepted(server, right)
        while often and not file.exists():
            server.check_alive()
            time.sleep(0.05)
        server.end(end)
    with serve(*options, env=FAST) as server:
        assert accepted(server, right) > cold


def test_a_memory_that_cannot_be_used(tmp_path: Path) -> None:
    """One of another vocabulary is left alone. A damaged one is an error before the model is loaded."""
    file = tmp_path / "memory"
    options = [*MOD_OPTIONS, "--draft-memory", str(file)]
    NgramModTable(6, vocab_size=7).save(str(file))
    kept = file.read_bytes()
    with serve(*options, env=FAST) as server:
        assert send(server, ASK).draft["strategy"] == "NgramModStrategy"
        assert f"{file} is not used" in server.log
    assert file.read_bytes() == kept
    file.write_bytes(kept[:-9])
    done = run(["-m", "mlx_lm", "server", "--model", "nowhere/nothing", *options])
    assert done.returncode == 2, done.stderr
    assert "--draft-memory" in done.stderr
    assert file.read_bytes() == kept[:-9]


def test_who_shares_a_memory(server: Server, right: Reference) -> None:
    """A server without a memory remembers nothing. In one with a memory, no request takes it from the others."""
    alone = {accepted(server, right, MOD) for _ in range(2)}
    assert len(alone) == 1
    with serve(*MOD_OPTIONS, env=FAST) as sharing:
        assert accepted(sharing, right) == min(alone)
        again = accepted(sharing, right)
        assert again > min(alone)
        for size in (5, 4, 8, 9):
            assert accepted(sharing, right, {"ngram_size": size}) < again
        assert accepted(sharing, right) >= again


def check_predictions_are_not_shared(sharing: Server, right: Reference, alone: int) -> None:
    """What one client predicts and nobody says is drafted for no other client."""
    guess = right(CALL).text
    quiet = Request(CHAT, {"messages": chat("Quote."), "max_tokens": 4})
    assert send(sharing, Request(quiet.path, quiet.body, {"prediction": predicted(guess)})).text == right(quiet).text
    assert accepted(sharing, right, ask=CALL) == alone, "drafted from a prediction of another client"


def test_predictions_are_not_shared(server: Server, right: Reference) -> None:
    with serve(*MOD_OPTIONS, env=FAST) as sharing:
        check_predictions_are_not_shared(sharing, right, accepted(server, right, MOD, CALL))


@pytest.mark.planted
def test_a_shared_prediction_is_found(server: Server, right: Reference, tmp_path: Path) -> None:
    fault = planted(share_predictions, tmp_path)
    alone = accepted(server, right, MOD, CALL)
    with serve(*MOD_OPTIONS, env=FAST | fault) as sharing, pytest.raises(AssertionError, match="another client"):
        check_predictions_are_not_shared(sharing, right, alone)


# Fields that are numbers, and values that are none for them.
NUMBERS = [
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "top_logprobs"),
    *("repetition_penalty", "repetition_context_size", "presence_penalty", "presence_context_size"),
    *("frequency_penalty", "frequency_context_size", "xtc_probability", "xtc_threshold"),
    *("num_draft_tokens", "ngram_size", "draft_margin", "logit_bias"),
]
OTHERS = [True, False, float("nan"), float("inf"), -float("inf"), 1e308, 10**30, -(10**30), "1", [1], {}]
CONTENTS = [None, 3, "\ud800", [3], [{"type": "text"}]]
WRONG: dict[str, list[Any]] = {
    "n": [2, 0],
    "draft_type": ["oracle", 3, ["auto"]],
    "num_draft_tokens": [-1, 10**9, 1.5, "8", [8]],
    "ngram_size": [0, -1, 10**9, 2.0, "3"],
    "disable_adaptive_gate": [1, "true", []],
    "draft_margin": [-1, "small", []],
    "prediction": ["text", 3, [], {}, {"content": "text"}, {"type": "text", "content": "a"}],
}
WRONG["prediction"] += [{"type": "content", "content": content} for content in CONTENTS]


def check_wrong_fields(server: Server) -> None:
    """Each is refused by its name, a number also by its value, and a seed draws as before."""
    seeded = Request(TEXT, {"prompt": "a", "max_tokens": 8, "temperature": 1, "top_k": 50, "top_p": 0.9, "seed": 7})
    text = send(server, seeded).text
    numbers = [(field, value, str(value)) for field, value in product(NUMBERS, OTHERS)]
    others = [(field, value, field) for field, values in WRONG.items() for value in values]
    for field, value, named in numbers + others:
        sent = {"1": value} if field == "logit_bias" else value
        for path, body in ((CHAT, SHORT.body), (TEXT, {"prompt": "a", "max_tokens": 4})):
            answer = send(server, Request(path, body | {"draft_type": "auto", field: sent}))
            assert answer.status == 400, (field, str(value)[:60], answer)
            assert field in answer.error, (field, str(value)[:60], answer)
            assert named in answer.error, (field, str(value)[:60], answer)
    assert send(server, seeded).text == text
    assert server.healthy()


@pytest.mark.contract("C6")
def test_wrong_fields_are_named(server: Server) -> None:
    check_wrong_fields(server)


@pytest.mark.planted
@pytest.mark.parametrize("broken", [let_any_number_through], indirect=True)
def test_numbers_that_come_through_are_found(broken: Server) -> None:
    with pytest.raises(AssertionError):
        check_wrong_fields(broken)


# OpenAI's seeds have a sign, those of MLX have none.
SEEDS = [0, 1, 7, 2**31, 2**63, -1]


def check_seeds(server: Server, draft: Body, fixture: Any) -> None:
    """A seed gives the text that the library decodes with it in this process."""
    body: Body = {"prompt": "def total(rows):\n    ", "max_tokens": 24, "temperature": 1.5, "top_p": 0.9}
    texts = {}
    for seed in SEEDS:
        mx.random.seed(seed % 2**64)
        steps = stream_generate(*fixture, body["prompt"], max_tokens=24, sampler=make_sampler(1.5, 0.9))
        texts[seed] = "".join(step.text for step in steps)
    assert len(set(texts.values())) == len(SEEDS), "the seeds cannot be told apart"
    for seed in SEEDS * 2:  # The second time, the prompt is cached.
        answer = send(server, Request(TEXT, body | {"seed": seed}, draft))
        assert answer.text == texts[seed], f"another text for the seed {seed}"


DRAFTS = pytest.mark.parametrize("draft", [{}, GATE_OFF], ids=["plain", "drafted"])


@DRAFTS
@pytest.mark.usefixtures("uncompiled")
def test_seeds_are_those_of_the_library(server: Server, draft: Body, fixture: Any) -> None:
    check_seeds(server, draft, fixture)


@pytest.mark.planted
@DRAFTS
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("broken", [act_as_seed_zero], indirect=True)
def test_a_seed_that_is_ignored_is_found(broken: Server, draft: Body, fixture: Any) -> None:
    with pytest.raises(AssertionError, match="another text for the seed 1"):
        check_seeds(broken, draft, fixture)


@pytest.mark.contract("C6")
@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["batched", "alone"])
def test_a_request_without_drafts_says_why(server: Server, right: Reference, seed: Body) -> None:
    request = Request(CHAT, SHORT.body | seed, {"draft_type": "auto", "num_draft_tokens": 0})
    answer = send(server, request)
    draft = answer.usage["completion_tokens_details"]["draft"]
    assert answer.text == right(Request(CHAT, SHORT.body | seed, {})).text
    assert (draft["drafted"], draft["reason"]) == (0, "num_draft_tokens is 0")


def drafting_lines(server: Server) -> list[str]:
    return re.findall(r"Drafting for chatcmpl-[0-9a-f-]{36}: (.*)", server.log)


@pytest.mark.contract("C6")
@pytest.mark.parametrize("streamed", [False, True])
def test_the_line_in_the_log(server: Server, streamed: bool) -> None:
    before = drafting_lines(server)
    send(server, ASK)
    assert drafting_lines(server) == before
    answer = send(server, Request(ASK.path, ASK.body, GATE_OFF, streamed=streamed))
    (line,) = drafting_lines(server)[len(before) :]
    draft = answer.draft
    rate = answer.usage["completion_tokens"] / draft["forwards"]
    counts = f"{draft['drafted']} tokens drafted, {draft['accepted']} accepted, {rate:.2f} tokens-per-forward"
    assert line == f"SuffixStrategy, {counts}"
