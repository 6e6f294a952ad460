"""A server with drafting gives the same texts as one without, also with other clients.

The right text comes from a separate server that serves the request alone, without drafting and without a prompt cache.
"""

from __future__ import annotations

import re
import signal
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from conformance import FIXTURE
from conformance.testing.faults.batch import draft_one_by_one, leave_the_last_block
from conformance.testing.faults.server import (
    planted,
    share_predictions,
    show_another_prefix,
    store_a_token_too_many,
)
from conformance.testing.models.tiny import save
from conformance.testing.server.clients import EDIT, GATE_OFF, LONG, SHORT, SLOWLY, Reader, Reference, drafted
from conformance.testing.server.endings import CASES, check_the_next_request
from conformance.testing.server.process import CHAT, FAST, TEXT, Server, ServerFailed, serve
from conformance.testing.server.traffic import CODE, EDITED, PENALTIES, Body, Request, judge, send
from conformance.testing.texts.prompts import PROMPTS
from conformance.testing.texts.workloads import chat, fenced


@pytest.fixture(scope="module")
def right() -> Iterator[Reference]:
    with serve("--prompt-cache-size", "0", env=FAST) as server:
        yield Reference(server)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("--prompt-cache-size", "10", env=FAST) as server:
        yield server


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The fixture, a model with a sliding window, and a hybrid one."""
    folder = tmp_path_factory.mktemp("models")
    return {"fixture": FIXTURE, **{name: save(name, folder) for name in ("gemma3_text", "qwen3_next")}}


@pytest.fixture
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server with the given planted fault."""
    with serve("--prompt-cache-size", "10", env=FAST | planted(request.param, tmp_path)) as server:
        yield server


def with_fault(*faults: Callable[[], None]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("broken", faults, indirect=True, ids=[fault.__name__ for fault in faults])


def check_endings(server: Server, right: Reference, path: Path, model: str) -> None:
    for case in CASES:
        if case.model == model:
            check_the_next_request(server, right, path, case)


@pytest.mark.parametrize("model", ["fixture", "gemma3_text", "qwen3_next"])
def test_the_next_request_after_an_ending(
    server: Server, right: Reference, models: dict[str, Path], model: str
) -> None:
    check_endings(server, right, models[model], model)


def test_the_next_request_after_a_system_prompt(server: Server, right: Reference, models: dict[str, Path]) -> None:
    """A hybrid model cannot trim back to the end of a system prompt, so its state there is kept."""
    system = {"role": "system", "content": "abcdefghijklmnopqrstuvwxyz"}
    for question, cached in (("ABC", 0), ("XYZ", 27)):
        body: Body = {"model": str(models["qwen3_next"]), "messages": [system, *chat(question)], "max_tokens": 12}
        answer = send(server, Request(CHAT, body, {"prediction": predicted(right(Request(CHAT, body)).text)}))
        assert answer.text == right(Request(CHAT, body)).text
        assert answer.cached_tokens == cached


@pytest.mark.planted
@with_fault(leave_the_last_block, store_a_token_too_many)
def test_a_wrong_prefix_is_found(broken: Server, right: Reference, models: dict[str, Path]) -> None:
    """The fault is found with every model, so stop words do fall inside accepted drafts."""
    for name, path in models.items():
        with pytest.raises(AssertionError, match="another text"):
            check_endings(broken, right, path, name)


def check_penalties(server: Server, right: Reference, draft: Body, seed: Body) -> None:
    """A text does not depend on the cached part of its prompt, and each penalty changes it."""
    unpunished = Request(CHAT, {"messages": EDIT, "max_tokens": 24, **seed})
    for penalty in PENALTIES:
        one = Request(CHAT, unpunished.body | penalty, draft, "SuffixStrategy")
        assert right(one).text != right(unpunished).text, f"{penalty} changes nothing"
        answers = [send(server, one) for _ in range(2)]
        assert answers[1].cached_tokens == answers[1].usage["prompt_tokens"] - 1
        for answer in answers:
            judge(one, answer, right(one))


WAYS = pytest.mark.parametrize(
    ("draft", "seed"), [({}, {}), ({}, {"seed": 1}), (GATE_OFF, {})], ids=["batched", "alone", "drafted"]
)


@WAYS
def test_penalties_see_a_cached_prompt(server: Server, right: Reference, draft: Body, seed: Body) -> None:
    check_penalties(server, right, draft, seed)


@pytest.mark.planted
@WAYS
@with_fault(show_another_prefix)
def test_another_prefix_is_found(broken: Server, right: Reference, draft: Body, seed: Body) -> None:
    with pytest.raises(AssertionError):
        check_penalties(broken, right, draft, seed)


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=server.timeout)


def predicted(*parts: str) -> Any:
    content: Any = [{"type": "text", "text": part} for part in parts] if len(parts) > 1 else parts[0]
    return {"type": "content", "content": content}


@pytest.mark.parametrize("parts", [(CODE,), (CODE[:40], CODE[40:])], ids=["text", "parts"])
@pytest.mark.parametrize("streamed", [False, True], ids=["at once", "streamed"])
def test_predicted_outputs(client: openai.OpenAI, right: Reference, parts: tuple[str, ...], streamed: bool) -> None:
    """The client of OpenAI sends the file to edit as a prediction. Most of its tokens come back."""
    fields: dict[str, Any] = {"model": "default_model", "messages": EDIT, "max_tokens": 100, "temperature": 0}
    expected = right(Request(CHAT, {"messages": EDIT, "max_tokens": 100}))
    if streamed:
        options = {"include_usage": True}
        *chunks, last = client.chat.completions.create(
            **fields, prediction=predicted(*parts), stream=True, stream_options=options
        )
        text, usage = "".join(chunk.choices[0].delta.content or "" for chunk in chunks), last.usage
    else:
        answer = client.chat.completions.create(**fields, prediction=predicted(*parts))
        text, usage = answer.choices[0].message.content, answer.usage
    assert text == expected.text == fenced(EDITED)
    assert usage is not None
    details = usage.completion_tokens_details
    # The name occurs three times in the file.
    assert details.rejected_prediction_tokens == 3
    assert details.accepted_prediction_tokens > 0.9 * (details.accepted_prediction_tokens + 3)
    assert details.draft["accepted"] > usage.completion_tokens / 2
    assert usage.completion_tokens == expected.usage["completion_tokens"]


def check_turns(server: Server, right: Reference, long: Request, short: Request) -> None:
    """A later short request is answered while a long one continues, and both texts are right."""
    reader = Reader(server, long)
    answer = send(server, short)
    unfinished = reader.is_alive()
    reader.join()
    assert unfinished, "it had to wait"
    assert reader.text == right(long).text
    judge(short, answer, right(short))


@pytest.mark.parametrize(
    ("long_draft", "short_draft"), [(SLOWLY, {}), ({}, GATE_OFF), (SLOWLY, GATE_OFF)], ids=["long", "short", "both"]
)
def test_nobody_waits_for_another(server: Server, right: Reference, long_draft: Body, short_draft: Body) -> None:
    check_turns(server, right, drafted(LONG, long_draft), drafted(SHORT, short_draft))


@pytest.mark.planted
@with_fault(draft_one_by_one)
def test_waiting_is_found(broken: Server, right: Reference) -> None:
    with pytest.raises(AssertionError, match="wait"):
        check_turns(broken, right, drafted(LONG, SLOWLY), SHORT)


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


def draft_and_terminate(right: Reference, options: list[str], cold: int) -> None:
    """A server that loads a memory accepts more than the one that made it, and SIGTERM ends it."""
    with serve(*options, env=FAST) as server:
        assert accepted(server, right) > cold
        Path(options[-1]).unlink()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(server.timeout)


def test_a_memory_is_kept(right: Reference, models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "memory"
    options = [*MOD_OPTIONS, "--draft-memory", str(file)]
    with serve(*options, env=FAST) as server:
        cold = accepted(server, right)
        assert not file.exists()
    assert file.exists()
    with pytest.raises(ServerFailed, match="the server ended with"):
        draft_and_terminate(right, options, cold)
    kept = file.read_bytes()

    # A model with another vocabulary.
    with serve(*options, env=FAST, model=models["gemma3_text"]) as server:
        assert send(server, Request(TEXT, {"prompt": "abc", "max_tokens": 8})).draft["strategy"] == "NgramModStrategy"
        assert f"{file} is not used" in server.log
    assert file.read_bytes() == kept

    # A damaged file is an error before the model is loaded. Here the model does not exist.
    file.write_bytes(kept[:-9])
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", "nowhere/nothing", *options]
    done = subprocess.run(command, capture_output=True, text=True)
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


def wrong(field: str, *values: Any) -> list[tuple[str, Any]]:
    return [(field, value) for value in values]


WRONG: list[tuple[str, Any]] = [
    *wrong("draft_type", "oracle", 3, ["auto"]),
    *wrong("num_draft_tokens", -1, 10**9, 1.5, "8", True, [8]),
    *wrong("ngram_size", 0, -1, 10**9, 2.0, "3", False, {}),
    *wrong("disable_adaptive_gate", 1, "true", []),
    *wrong("draft_margin", -1, "small", True, [], float("inf"), float("nan")),
    *wrong("prediction", "text", 3, [], {}, {"content": "text"}, {"type": "text", "content": "a"}),
    *wrong("prediction", *({"type": "content", "content": c} for c in (None, 3, "\ud800", [3], [{"type": "text"}]))),
]


@pytest.mark.contract("C6")
def test_wrong_fields_are_named(server: Server, right: Reference) -> None:
    for field, value in WRONG:
        draft = {"draft_type": "auto", field: value}
        for path, body in ((CHAT, SHORT.body), (TEXT, {"prompt": "a", "max_tokens": 4})):
            answer = send(server, Request(path, body, draft))
            assert answer.status == 400, (field, str(value)[:60], answer)
            assert field in answer.error, (field, str(value)[:60], answer)
    assert send(server, SHORT).text == right(SHORT).text
    assert server.healthy()


@pytest.mark.contract("C6")
@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["batched", "alone"])
def test_a_request_without_drafts_says_why(server: Server, right: Reference, seed: Body) -> None:
    request = Request(CHAT, SHORT.body | seed, {"draft_type": "auto", "num_draft_tokens": 0})
    answer = send(server, request)
    draft = answer.usage["completion_tokens_details"]["draft"]
    assert answer.text == right(Request(CHAT, SHORT.body | seed, {})).text
    assert (draft["drafted"], draft["reason"]) == (0, "num_draft_tokens is 0")


@pytest.mark.parametrize("seed", [{}, {"seed": 1}], ids=["batched", "alone"])
def test_a_prompt_that_is_cached_whole(server: Server, right: Reference, models: dict[str, Path], seed: Body) -> None:
    """A fully cached prompt needs a trim. Without a trim the server uses the cache before it."""
    # No other test uses these prompts.
    letters = string.ascii_letters[::-1][len(seed) :]
    for name in ("fixture", "qwen3_next"):
        prompt, cached = letters, []
        # Each prompt is the text after the request before it. The last two prompts are equal.
        for more in ("abc", "", ""):
            request = Request(TEXT, {"model": str(models[name]), "prompt": prompt, "max_tokens": 1, **seed})
            answer = send(server, request)
            assert answer.text == right(request).text
            cached.append(answer.cached_tokens)
            n_prompt = answer.usage["prompt_tokens"]
            prompt += answer.text + more if len(cached) < 3 else ""
        assert cached[0] == 0
        assert 0 < cached[1] <= cached[2] < n_prompt


@pytest.mark.parametrize("fields", [{}, {"seed": 1}, GATE_OFF], ids=["batched", "alone", "drafted"])
def test_the_bytes_of_the_prompt_cache(fields: Body) -> None:
    with serve("--prompt-cache-bytes", "1000", env=FAST) as server:
        for _ in range(2):
            assert send(server, Request(SHORT.path, SHORT.body | fields)).cached_tokens == 0


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
