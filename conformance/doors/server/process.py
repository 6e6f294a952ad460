"""Start `mlx_lm.server`, as a program or in a thread of this process, and talk to it."""

from __future__ import annotations

import json
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import patch

import requests

from conformance import FIXTURE
from conformance.doors.programs import Program, program

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
# Each compiled function would start a C++ compiler.
FAST = {"MLX_DISABLE_COMPILE": "1"}
# No answer takes this long: such a request hangs.
TIMEOUT = 60.0
# The longest time to load a large model from a slow disk.
START_TIMEOUT = 300.0
TAIL = 4000
Body = dict[str, Any]


class ServerFailed(AssertionError):
    """The server did not start, died or did not stop. The message has the end of its log."""


def events(lines: Iterable[bytes]) -> Iterator[Body]:
    """The events of a stream, which ends with an error or as it has to. Comments keep the connection alive."""
    for line in lines:
        if line == b"data: [DONE]":
            return
        if line.startswith(b"data: "):
            event: Body = json.loads(line.removeprefix(b"data: "))
            yield event
            if "error" in event:
                return
    raise AssertionError("the stream has no end")


def text_of(said: Body) -> str:
    """The text of an answer, or of an event, whose parts are named otherwise."""
    parts = (one.get("message") or one.get("delta") or {"content": one.get("text")} for one in said["choices"])
    return "".join(part.get("content") or "" for part in parts)


class Client:
    """Requests to a server at an address, each with a timeout. A request is its body, which suits one path."""

    def __init__(self, url: str) -> None:
        self.url, self.timeout = url, TIMEOUT

    def post(self, body: Any, path: str = "", stream: bool = False) -> requests.Response:
        url = self.url + (path or (CHAT if "messages" in body else TEXT))
        return requests.post(url, data=json.dumps(body).encode(), timeout=self.timeout, stream=stream)

    def get(self, page: str) -> requests.Response:
        return requests.get(self.url + page, timeout=self.timeout)

    def stream(self, body: Body) -> Generator[Body, None, None]:
        """The events of a streamed request as they come. Closing the generator closes the connection."""
        with self.post(body | {"stream": True}, stream=True) as response:
            if response.status_code != 200:
                yield response.json()
            else:
                yield from events(response.iter_lines())

    def pieces(self, body: Body) -> Generator[str, None, None]:
        """The pieces of text of a streamed request as they come."""
        for event in self.stream(body):
            assert "error" not in event, event
            yield text_of(event)

    def healthy(self) -> bool:
        return bool(self.get("/health").status_code == 200)


class Server(Client):
    """A client of a server that runs in its own process, whose log is a file."""

    def __init__(self, process: Program, port: int, log: Path) -> None:
        super().__init__(f"http://127.0.0.1:{port}")
        self.process, self._log = process, log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def check_alive(self) -> None:
        if (code := self.process.poll()) is not None:
            raise ServerFailed(f"the server ended with {code}\n{self.log[-TAIL:]}")

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            self.check_alive()
            with suppress(requests.ConnectionError):
                if self.healthy():
                    return
            time.sleep(0.1)
        raise ServerFailed(f"the server did not answer /health\n{self.log[-TAIL:]}")


def free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def serve(
    *args: str, model: str | Path = FIXTURE, env: dict[str, str] | None = None, cold: bool = False
) -> Iterator[Server]:
    """A server in a process, with options and environment variables, once it is healthy.

    It ends as with Ctrl-C, so that it saves what it saves. ``cold`` is one in a new process, not in a fork.
    """
    (port,) = free_ports(1)
    command = ["-m", "mlx_lm", "server", "--model", str(model), "--port", str(port), *args]
    with tempfile.TemporaryDirectory() as folder:
        process = program(command, Path(folder, "log"), env=env, cold=cold)
        server = Server(process, port, Path(folder, "log"))
        try:
            server.wait_until_healthy()
            yield server
            if process.poll() != 0:
                server.check_alive()
                process.send_signal(signal.SIGINT)
                code = process.wait(server.timeout)
                # While Python ends, a generation thread may still free its mlx state. Then it waits for a lock that no
                # longer exists (mlx 0.32.4, Python 3.11).
                aborted = server.log.endswith("terminate called without an active exception\n")
                if code != 0 and (code != -signal.SIGABRT or not aborted):
                    raise ServerFailed(f"the server stopped with {code}\n{server.log[-TAIL:]}")
        finally:
            process.kill()
            process.wait()


class Inside(Client):
    """A client of a server that runs in a thread: what listens, and the ResponseGenerator, whose thread decodes."""

    def __init__(self, httpd: ThreadingHTTPServer, generator: Any) -> None:
        super().__init__(f"http://127.0.0.1:{httpd.server_port}")
        self.httpd, self.generator = httpd, generator


@contextmanager
def inside(*args: str, model: str | Path = FIXTURE) -> Iterator[Inside]:
    """A server in a thread, which takes no time, with all that its main function does but the signals."""
    from mlx_lm import server as module

    started: SimpleQueue[Inside | None] = SimpleQueue()
    run = module._run_http_server

    def main() -> None:
        try:
            module.main()
        finally:
            started.put(None)

    def listen(host: str, port: int, generator: Any) -> None:
        class Httpd(ThreadingHTTPServer):
            def server_activate(self) -> None:
                super().server_activate()
                started.put(Inside(self, generator))

            def serve_forever(self, poll_interval: float = 0.02) -> None:
                """It looks this often whether it has to end."""
                super().serve_forever(poll_interval)

        try:
            run(host, port, generator, Httpd)
        finally:
            generator.stop_and_join()

    # A daemon, as the generation thread that it starts: a server that does not stop is a failure and no more.
    thread = threading.Thread(target=main, daemon=True)
    argv = ["mlx_lm.server", "--model", str(model), "--port", "0", *args]
    with patch.object(sys, "argv", argv), patch.object(module, "_run_http_server", listen):
        thread.start()
        server = started.get(timeout=START_TIMEOUT)
    if server is None:
        raise ServerFailed("the server did not start")
    try:
        yield server
    finally:
        server.httpd.shutdown()
        server.httpd.server_close()
        thread.join(server.timeout)
        if thread.is_alive():
            raise ServerFailed("the server did not stop")
