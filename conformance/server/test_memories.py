"""The memory of n-grams that the requests to a server share, and that it keeps in a file."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from mlx_lm.draft import NgramModTable

from conformance.doors.programs import run
from conformance.doors.server.process import CHAT, FAST, Body, Client, Inside, inside, planted, serve
from conformance.doors.server.requests import Request, Right, send
from conformance.oracle.findings import broken
from conformance.server.instruments import save_often
from conformance.server.traffic import ASK, SHORT
from conformance.subjects.prompts import PROMPTS

MOD: Body = {"draft_type": "ngram-mod", "ngram_size": 6, "disable_adaptive_gate": True}
MOD_OPTIONS = ["--draft-type", "ngram-mod", "--ngram-size", "6", "--disable-adaptive-gate"]
# Parts of its answer are not in the prompt.
CALL = Request(CHAT, {"messages": PROMPTS["tool"], "max_tokens": 100})


def accepted(server: Client, right: Right, draft: Body | None = None, ask: Request = ASK) -> int:
    """The number of accepted tokens for a request. Its text is right."""
    answer = send(server, ask.but(draft=draft or {}))
    if answer.text != (text := right(ask).text):
        broken(f"text: {answer.text!r} instead of {text!r}", str(ask))
    return int(answer.draft["accepted"])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_memory_is_kept(right: Right, tmp_path: Path, end: signal.Signals) -> None:
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
    with inside(*options) as loaded:
        warm = accepted(loaded, right)
    assert warm > cold, f"{warm} tokens are accepted with the memory, and {cold} without"


def test_a_memory_that_cannot_be_used(tmp_path: Path) -> None:
    """One of another vocabulary is left alone. A damaged one is an error before the model is loaded."""
    file = tmp_path / "memory"
    options = [*MOD_OPTIONS, "--draft-memory", str(file)]
    NgramModTable(6, vocab_size=7).save(str(file))
    kept = file.read_bytes()
    with inside(*options) as server:
        assert send(server, ASK).draft["strategy"] == "NgramModStrategy"
        assert f"{file} is not used" in server.log
    assert file.read_bytes() == kept, "it is changed"
    file.write_bytes(kept[:-9])
    done = run(["-m", "mlx_lm", "server", "--model", "nowhere/nothing", *options])
    assert (done.returncode, "--draft-memory" in done.stderr) == (2, True), done.stderr
    assert file.read_bytes() == kept[:-9], "it is changed"


def test_who_shares_a_memory(server: Inside, right: Right) -> None:
    """A server without a memory remembers nothing. In one with a memory, no request takes it from the others."""
    alone = [accepted(server, right, MOD) for _ in range(2)]
    assert alone[0] == alone[1], f"{alone} tokens are accepted without a memory"
    with inside(*MOD_OPTIONS) as sharing:
        first, again = (accepted(sharing, right) for _ in range(2))
        others = [accepted(sharing, right, {"ngram_size": size}) for size in (5, 4, 8, 9)]
        last = accepted(sharing, right)
    told = f"{first}, {again}, of other sizes {others}, at last {last} tokens are accepted, and {alone[0]} alone"
    assert first == alone[0] < again <= last, told
    assert max(others) < again, told


def test_predictions_are_not_shared(server: Inside, right: Right) -> None:
    """What one client predicts and nobody says is drafted for no other client."""
    alone = accepted(server, right, MOD, CALL)
    with inside(*MOD_OPTIONS) as sharing:
        guess = SHORT.but(draft={"prediction": {"type": "content", "content": right(CALL).text}})
        assert send(sharing, guess).text == right(guess).text
        told = accepted(sharing, right, ask=CALL)
    if told != alone:
        broken(f"{told} tokens are accepted and {alone} without a prediction of another client")
