"""Failures of the server process that other tests use."""

from __future__ import annotations

import pytest

from conformance.doors.server.process import Server, ServerFailed, serve


def test_one_that_does_not_start_is_an_error_with_its_log() -> None:
    with pytest.raises(ServerFailed, match="unrecognized arguments: --no-such-option"), serve("--no-such-option"):
        pass


def kill(server: Server) -> None:
    server.process.kill()
    server.process.wait()


def test_one_that_dies_is_an_error_with_its_log() -> None:
    with pytest.raises(ServerFailed, match=r"ended with -9(.|\n)*Starting httpd"), serve() as server:
        kill(server)


def test_one_that_is_stopped_answers_to_the_end() -> None:
    with serve("--max-tokens", "3") as server:
        body = {"messages": [{"role": "user", "content": "Change `a` to `b`.\n```\na = 1\n```"}]}
        assert "".join(server.pieces(body)) == server.post(body).json()["choices"][0]["message"]["content"]
        assert "POST /v1/chat/completions" in server.log
    assert server.process.returncode is not None
