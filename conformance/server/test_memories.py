"""What the requests to a server share: a memory of n-grams, or of texts, and the file that holds it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from mlx_lm import server as module
from mlx_lm.draft import NgramModTable

from conformance.doors.server.process import Body, Client, Inside, inside
from conformance.doors.server.requests import Right, judge_all, load, send
from conformance.oracle.findings import broken
from conformance.server.traffic import ASK, SHORT
from conformance.subjects.prompts import PROMPTS

MOD: Body = {"draft_type": "ngram-mod", "ngram_size": 6, "disable_adaptive_gate": True}
OF_ALL = ["--draft-type", "ngram-mod", "--ngram-size", "6", "--disable-adaptive-gate"]
UNGATED: Body = {"disable_adaptive_gate": True}
# Parts of its answer are not in the prompt.
CALL: Body = {"messages": PROMPTS["tool"], "max_tokens": 100}


def accepted(server: Client, right: Right, body: Body = ASK) -> int:
    """The number of accepted tokens for a request. Its text is right."""
    answer = send(server, body)
    if answer.text != (text := right(body).text):
        broken(f"text: {answer.text!r} instead of {text!r}", json.dumps(body))
    return int(answer.draft["accepted"])


def test_a_memory_is_kept(right: Right, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that loads a memory accepts more than the one that made it, which has saved it before its end."""
    monkeypatch.setattr(module, "SAVE_INTERVAL", 0.1)
    file, loaded = tmp_path / "memory", tmp_path / "copy"
    with inside(*OF_ALL, "--draft-memory", str(file)) as server:
        cold, end = accepted(server, right), time.monotonic() + server.timeout
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        shutil.copy(file, loaded)
    with inside(*OF_ALL, "--draft-memory", str(loaded)) as server:
        warm = accepted(server, right)
    assert warm > cold, f"{warm} tokens are accepted with the memory, and {cold} without"


def test_a_memory_of_another_vocabulary_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    NgramModTable(6, vocab_size=7).save(str(file))
    kept = file.read_bytes()
    with inside(*OF_ALL, "--draft-memory", str(file)) as server:
        assert send(server, SHORT).draft["strategy"] == "NgramModStrategy"
        assert f"{file} is not used" in server.log
    assert file.read_bytes() == kept, "it is changed"


def test_who_shares_a_memory(server: Inside, right: Right) -> None:
    """A server without a memory remembers nothing. In one with a memory, no request takes it from the others.

    What one client predicts and nobody says is drafted for no other client.
    """
    alone = [accepted(server, right, ASK | MOD) for _ in range(2)]
    unpredicted = accepted(server, right, CALL | MOD)
    assert alone[0] == alone[1], f"{alone} tokens are accepted without a memory"
    with inside(*OF_ALL) as sharing:
        accepted(sharing, right, SHORT | {"prediction": {"type": "content", "content": right(CALL).text}})
        if (told := accepted(sharing, right, CALL)) != unpredicted:
            broken(f"{told} tokens are accepted and {unpredicted} without a prediction of another client")
        first, again = (accepted(sharing, right) for _ in range(2))
        other, last = accepted(sharing, right, ASK | {"ngram_size": 4}), accepted(sharing, right)
    if not (first == alone[0] < again <= last and other < again):
        broken(f"{first}, {again}, of another size {other}, {last} tokens are accepted, and {alone[0]} alone")


@pytest.mark.parametrize("n_clients", [1, 4, 8])
def test_a_server_of_this_machine_remembers(right: Right, tmp_path: Path, n_clients: int) -> None:
    """Without any option, whoever asks, alone and in a batch, and from its file. On a network it does not."""
    file, asked = tmp_path / "memory", [body | UNGATED for body in (ASK, CALL, ASK | {"seed": 1}, CALL)] * 2
    with inside("--draft-memory", str(file)) as server:
        counts = [accepted_by(server, right, asked, n_clients, "auto") for _ in range(2)]
        server.generator.save_memory()
    with inside("--draft-memory", str(file)) as server:
        counts.append(accepted_by(server, right, asked, n_clients, "auto"))
    with inside("--host", "0.0.0.0") as server:
        # By EditStrategy, as the requests to a server that drafts nothing by itself.
        others = [body | {"draft_type": "auto"} for body in asked]
        alone = [accepted_by(server, right, others, n_clients, "none") for _ in range(2)]
    if not max(*alone, counts[0]) < min(counts[1:]):
        broken(f"{counts} tokens are accepted with a memory, and {alone} without")


def accepted_by(server: Inside, right: Right, bodies: list[Body], n_clients: int, by: str) -> int:
    """The number of accepted tokens for requests, whose texts are right, of that many at a time."""
    judge_all(bodies, answers := load(server, bodies, n_clients), right, by)
    if memory := server.generator.draft_options.draft_memory:
        memory.wait()
    return sum(answer.draft["accepted"] for answer in answers)
