"""A field with another kind of number is refused by its name, and the server draws as before.

These servers compile, as those of users do. A compiled function that raises can leave the random state unusable.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from conformance.testing.faults.server import (
    keep_placeholders,
    let_any_number_through,
    planted,
)
from conformance.testing.server.process import TEXT, Server, serve
from conformance.testing.server.traffic import Body

BODY: Body = {"prompt": "abc", "max_tokens": 8, "temperature": 1}
# Unlike a seed, this shows the random state that the requests before left.
UNSEEDED: Body = BODY | {"max_tokens": 1}
SEEDED: Body = BODY | {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "xtc_probability": 0.5, "seed": 7}
NUMBERS = [
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "top_logprobs"),
    *("repetition_penalty", "repetition_context_size", "presence_penalty", "presence_context_size"),
    *("frequency_penalty", "frequency_context_size", "xtc_probability", "xtc_threshold"),
    *("num_draft_tokens", "ngram_size", "draft_margin", "logit_bias"),
]
OTHERS = [True, False, float("nan"), float("inf"), -float("inf"), 1e308, 10**30, -(10**30), "1", [1], {}]


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with serve(env=planted(request.param, tmp_path) if hasattr(request, "param") else {}) as server:
        yield server


def draw(server: Server, body: Body) -> str:
    response = server.post(body, TEXT)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def post(server: Server, field: str, value: Any) -> requests.Response:
    is_drafted = field in ("num_draft_tokens", "ngram_size", "draft_margin")
    draft: Body = {"draft_type": "ngram-simple", "temperature": 0} if is_drafted else {}
    sent = {"1": value} if field == "logit_bias" else value
    return server.post(BODY | draft | {field: sent}, TEXT)


def check_numbers(server: Server) -> None:
    text = draw(server, SEEDED)
    for field in NUMBERS:
        for value in OTHERS:
            response = post(server, field, value)
            assert response.status_code == 400, (field, value, response.text)
            message = response.json()["error"]["message"]
            assert field in message, (field, value, message)
            assert str(value) in message, (field, value, message)
    check_draws(server)
    assert draw(server, SEEDED) == text


def check_draws(server: Server) -> None:
    draw(server, UNSEEDED)
    assert server.healthy()


def check_health(server: Server) -> None:
    """The server is healthy if and only if it serves a request that draws."""
    served = server.post(UNSEEDED, TEXT).status_code == 200
    health = requests.get(f"{server.url}/health", timeout=server.timeout)
    assert (health.status_code == 200) == served, f"{health.text} but served: {served}"


def test_other_numbers_are_refused(server: Server) -> None:
    check_numbers(server)


@pytest.mark.planted
@pytest.mark.parametrize("server", [let_any_number_through], indirect=True)
def test_numbers_that_come_through_are_found(server: Server) -> None:
    with pytest.raises(AssertionError):
        check_numbers(server)


@pytest.mark.parametrize("server", [let_any_number_through], indirect=True)
def test_a_sampler_that_raises(server: Server) -> None:
    for field, value in (("top_k", True), ("top_p", float("nan")), ("min_p", 1e308), ("temperature", "1")):
        post(server, field, value)
        check_draws(server)
    check_health(server)


@pytest.mark.planted
@pytest.mark.parametrize("server", [keep_placeholders], indirect=True)
def test_a_broken_random_state_is_found(server: Server) -> None:
    assert post(server, "top_k", True).status_code == 500
    with pytest.raises(AssertionError):
        check_draws(server)
    with pytest.raises(AssertionError, match="but served"):
        check_health(server)
