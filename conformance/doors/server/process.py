"""Start a real `mlx_lm.server` process on loopback, and talk to it with a small client.

with serve("--draft-type", "auto") as server:
    answer = server.post({"messages": [...], "max_tokens": 8})
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from conformance import FIXTURE, ROOT
from conformance.doors.programs import Program, program

CHAT = "/v1/chat/completions"
# Each compiled function would start a C++ compiler.
FAST = {"MLX_DISABLE_COMPILE": "1"}
TEXT = "/v1/completions"
# No answer takes this long: such a request hangs.
TIMEOUT = 60.0
# The longest time to load a large model from a slow disk.
START_TIMEOUT = 300.0
TAIL = 4000
ABORT = "terminate called without an active exception\n"


class ServerFailed(AssertionError):
    """The server did not start, died or did not stop. The message has the end of its log."""


@dataclass
class Stream:
    """The events of a streamed request, and whether the stream ended correctly."""

    status: int
    events: list[dict[str, Any]]
    done: bool
    body: str = ""

    @property
    def text(self) -> str:
        choices = [c for e in self.events for c in e.get("choices", [])]
        return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


class Client:
    """Requests to a server at an address, each with a timeout."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self.url = url
        self.timeout = timeout

    def post(self, body: Any, path: str = CHAT) -> requests.Response:
        """Send a body, as JSON unless it is bytes, and read the whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return requests.post(self.url + path, data=data, headers=headers, timeout=self.timeout)

    def stream(self, body: dict[str, Any], path: str = CHAT) -> Stream:
        """Send a body with ``stream`` set, and read the events to the end."""
        response = self.post({**body, "stream": True}, path)
        return read_stream(response)

    def healthy(self) -> bool:
        return bool(requests.get(self.url + "/health", timeout=self.timeout).status_code == 200)

    def raw(self, request: bytes) -> bytes:
        """Send raw bytes, close the sending side, and read until the server closes."""
        host, port = self.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=self.timeout) as connection:
            connection.sendall(request)
            # The server may have answered and closed already.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))


def read_stream(response: requests.Response) -> Stream:
    """The events of a whole answer. Comments, which keep the connection alive, are skipped."""
    lines = [line for line in response.content.decode().split("\n\n") if line.startswith("data: ")]
    done = bool(lines) and lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[: -1 if done else None]]
    return Stream(response.status_code, events, done, response.text)


class Server(Client):
    """A client of a server that runs in its own process."""

    def __init__(self, process: Program, port: int, log: Path) -> None:
        super().__init__(f"http://127.0.0.1:{port}")
        self.process = process
        self.has_ended = False
        self._log = log

    @property
    def log(self) -> str:
        """All that the server has printed."""
        return self._log.read_text(errors="replace")

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            self.check_alive()
            try:
                if self.healthy():
                    return
            except requests.ConnectionError:
                pass
            time.sleep(0.1)
        raise ServerFailed(f"the server did not answer /health\n{self.log[-TAIL:]}")

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise ServerFailed(f"the server ended with {self.process.returncode}\n{self.log[-TAIL:]}")

    def end(self, sig: signal.Signals) -> int:
        """Send a signal, and wait until the process ends. Returns its exit code."""
        self.has_ended = True
        self.process.send_signal(sig)
        return self.process.wait(self.timeout)

    def stop(self) -> None:
        """End the server as Ctrl-C does, so that it saves what it saves at exit."""
        self.check_alive()
        try:
            code = self.end(signal.SIGINT)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"the server did not stop\n{self.log[-TAIL:]}") from None
        # While Python ends, a generation thread may still free its mlx state. Then it waits for a lock that no longer
        # exists, and the process aborts (mlx 0.32.4, Python 3.11). The server has finished its own work by then.
        if code != 0 and not (code == -signal.SIGABRT and self.log.endswith(ABORT)):
            raise ServerFailed(f"the server stopped with {code}\n{self.log[-TAIL:]}")


def planted(fault: Callable[[], None], folder: Path, *more: Callable[[], None]) -> dict[str, str]:
    """The environment variables of a process that starts with a fault, or with a helper that shows one."""
    calls = (f"from {one.__module__} import {one.__name__}\n{one.__name__}()\n" for one in (fault, *more))
    (folder / "sitecustomize.py").write_text("".join(calls))
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


def free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def serve(
    *args: str, model: str | Path = FIXTURE, env: dict[str, str] | None = None, cold: bool = False
) -> Iterator[Server]:
    """Start a server, and yield it once it is healthy.

    Args:
        args: options of mlx_lm.server.
        model: the model to load.
        env: environment variables, added to those of this process.
        cold: whether it starts in a new process, not in a fork.
    """
    (port,) = free_ports(1)
    command = ["-m", "mlx_lm", "server", "--model", str(model), "--port", str(port), *args]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        process = program(command, log, env=env, cold=cold)
        server = Server(process, port, log)
        try:
            server.wait_until_healthy()
            yield server
            if not server.has_ended:
                server.stop()
        finally:
            process.kill()
            process.wait()
