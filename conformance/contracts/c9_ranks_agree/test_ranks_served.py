"""mlx_lm.server and mlx_lm.chat on two ranks give the same text as on one rank.

Requests use every way to draft, they overlap, and a client leaves early. The ranks stay in step.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import requests

from conformance import FIXTURE
from conformance.doors.programs import run
from conformance.doors.ranks import ranks_of
from conformance.doors.server.process import Client, free_ports, serve
from conformance.doors.server.requests import Right
from conformance.server.sessions import Session, check_ends
from conformance.server.traffic import GATE_OFF
from conformance.subjects.prompts import PROMPTS
from conformance.subjects.tiny import ENDED, ENDED_TEMPLATE, as_qwen2, save

LIMIT = 120.0
TURNS = ["Change `x` to `y`. x = 1", "Change `y` to `z`. y = 1", "r", "Change `x` to `z`. x = 1"]
WAYS: list[dict[str, Any]] = [
    {"draft_type": "auto"},
    {"draft_type": "none"},
    {"draft_type": "ngram-simple", "ngram_size": 2, "disable_adaptive_gate": True},
    {"draft_type": "ngram-mod", "ngram_size": 4},
    {"draft_type": "ngram-mod", "ngram_size": 4},
    {"draft_type": "suffix", "num_draft_tokens": 4},
    {"draft_type": "auto", "seed": 1},
    {"prediction": {"type": "content", "content": "total = 0\nfor name in rows:\n"}},
]


@contextmanager
def serve_on_ranks(folder: Path, model: Path, *args: str) -> Iterator[Client]:
    """A server on two ranks. The first rank answers."""
    (port,) = free_ports(1)
    arguments = ["-m", "mlx_lm", "server", "--model", str(model), "--port", str(port), *args]
    with ranks_of(arguments, folder) as ranks:
        client = Client(f"http://127.0.0.1:{port}", LIMIT)
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            assert all(rank.poll() is None for rank in ranks), (folder / "0.err").read_text()[-2000:]
            try:
                if client.healthy():
                    break
            except requests.ConnectionError:
                time.sleep(0.1)
        yield client


def bodies() -> list[dict[str, Any]]:
    names = ["tool", "json"] * len(WAYS)
    return [{"messages": PROMPTS[name], "max_tokens": 24, **way} for way, name in zip(WAYS, names, strict=False)]


def answer(client: Client, body: dict[str, Any]) -> str:
    response = client.post(body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def accepted(answer: dict[str, Any]) -> int:
    draft: dict[str, int] = answer["usage"].get("completion_tokens_details", {}).get("draft", {})
    return draft.get("accepted", 0)


def plain_answers(client: Client, wanted: list[dict[str, Any]]) -> list[str]:
    """The answers to the bodies without drafting. Each prompt is decoded once."""
    told: dict[str, str] = {}
    for body in wanted:
        if (prompt := str(body["messages"])) not in told:
            told[prompt] = answer(client, {key: body[key] for key in ("messages", "max_tokens")})
    return [told[str(body["messages"])] for body in wanted]


def break_off(client: Client, body: dict[str, Any]) -> None:
    """Read the start of a stream, then close the connection."""
    with requests.post(f"{client.url}/v1/chat/completions", json=body | {"stream": True}, stream=True) as response:
        next(response.iter_lines())


@pytest.mark.parametrize("how", ["tensor", "pipeline"])
def test_the_server(tmp_path: Path, how: str) -> None:
    model = as_qwen2(tmp_path) if how == "pipeline" else FIXTURE
    # They need not pay here.
    ungated = [body | {"draft_type": "ngram-simple", "disable_adaptive_gate": True} for body in bodies()[:4]]
    with serve(model=model) as one:
        right = plain_answers(one, bodies())
        # A server that drafts nothing would only run into the time limits.
        assert accepted(one.post(ungated[0]).json()) > 0
    # The requests of the other one share a memory.
    options = ["--pipeline"] if how == "pipeline" else ["--draft-type", "ngram-mod", "--ngram-size", "4"]
    with serve_on_ranks(tmp_path, model, *options) as client:
        assert [answer(client, body) for body in bodies()] == right
        break_off(client, bodies()[0])
        break_off(client, bodies()[6])
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda body: answer(client, body), bodies())) == right
            # Drafts of several rows.
            answers = [response.json() for response in pool.map(client.post, ungated)]
        assert [each["choices"][0]["message"]["content"] for each in answers] == right[:4]
        assert sum(map(accepted, answers)) > 0
        assert client.healthy()


# The stages of the hybrid hold different layers: one can be trimmed, the other goes back to checkpoints. llama has a
# window in every second layer here, and sums of two ranks are rounded otherwise than those of one.
SPLIT: dict[str, tuple[str, list[str], list[dict[str, Any]], float]] = {
    "pipeline": ("qwen3_next", ["--pipeline"], [{}, GATE_OFF], 0.0),
    "tensor": ("llama", [], [{}, GATE_OFF], 1e-4),
}


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("how", SPLIT)
def test_a_session_with_prefixes(tmp_path: Path, how: str) -> None:
    """Both ranks go on from the same place, which is as near as on one rank."""
    name, options, drafts, noise = SPLIT[how]
    model = save(name, tmp_path, ENDED_TEMPLATE, **ENDED)
    right = Right()
    for draft in drafts:
        with serve_on_ranks(tmp_path, model, "--prompt-cache-checkpoints", "99", *options) as client:
            check_ends(Session(client, right, str(model), draft, noise))


def chat(*options: str) -> list[str]:
    return ["-m", "mlx_lm", "chat", "--model", str(FIXTURE), "--max-tokens", "32", *options]


@cache
def on_one_rank(queries: str) -> subprocess.CompletedProcess[str]:
    return run(chat(), typed=queries, timeout=LIMIT)


def said(printed: str) -> str:
    """The answers, without terminal codes and without times."""
    printed = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|[\x01\x02]", "", printed)
    drawn = r"tok/s|Drafting: |[\u2500-\u257f\u203a]"
    lines = [line for line in printed.splitlines() if not re.search(drawn, line)]
    return "\n".join(line for line in lines if line.strip())


@pytest.mark.parametrize("draft_type", ["auto", "ngram-mod"])
def test_the_chat(tmp_path: Path, draft_type: str) -> None:
    queries = "".join(f"{query}\n" for query in [*TURNS, "q"])
    done = on_one_rank(queries)
    assert done.returncode == 0, done.stderr
    with ranks_of(chat("--draft-type", draft_type), tmp_path, typed=queries) as ranks:
        assert [rank.wait(LIMIT) for rank in ranks] == [0, 0], (tmp_path / "0.err").read_text()[-2000:]
    printed = (tmp_path / "0.out").read_text()
    assert said(printed) == said(done.stdout)
    assert "tokens-per-forward" in printed
