"""A server process that does not start, or dies, is an error with its log."""

from __future__ import annotations

import pytest

from conformance.doors.server.process import Server, ServerFailed, serve

pytestmark = pytest.mark.selftest


def test_one_that_does_not_start_is_an_error_with_its_log() -> None:
    with pytest.raises(ServerFailed, match="unrecognized arguments: --no-such-option"), serve("--no-such-option"):
        pass


def kill(server: Server) -> None:
    server.process.kill()
    server.process.wait()


def test_one_that_dies_is_an_error_with_its_log() -> None:
    with pytest.raises(ServerFailed, match=r"ended with -9(.|\n)*Starting httpd"), serve() as server:
        kill(server)
