"""Run several ranks on this machine with the ring backend, as mlx.launch does. Ranks that wait for each other fail."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance import FIXTURE, ROOT
from conformance.doors.programs import Program, program
from conformance.doors.server.process import Server, free_ports
from conformance.oracle.findings import broken

N_RANKS = 2
# No rank is silent for this long, also on a busy machine. Only a deadlock takes longer.
SILENCE = 120.0


@contextmanager
def ranks_of(arguments: Sequence[str], folder: Path) -> Iterator[list[Program]]:
    """Start a program as two ranks, which write to RANK.out and RANK.err in a folder. They end with the context."""
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(N_RANKS)]))
    ranks: list[Program] = []
    try:
        for rank in range(N_RANKS):
            env = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts), "PYTHONUNBUFFERED": "1"}
            out, err = folder / f"{rank}.out", folder / f"{rank}.err"
            out.touch()
            ranks.append(program(arguments, out, err=err, env=env, cwd=ROOT))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def run(arguments: Sequence[str], folder: Path) -> list[str]:
    """Run a program as two ranks, and return what each prints. A rank that fails or waits forever fails the test."""
    printed, since = -1, time.monotonic()
    with ranks_of(arguments, folder) as ranks:
        files = [folder / f"{rank}.out" for rank in range(N_RANKS)]
        # The other ranks would wait for one that failed.
        while None in (codes := [process.poll() for process in ranks]) and not any(codes):
            if (now := sum(file.stat().st_size for file in files)) != printed:
                printed, since = now, time.monotonic()
            if time.monotonic() - since > SILENCE:
                broken(f"the ranks wait for each other: they print nothing for {SILENCE:.0f} seconds")
            time.sleep(0.05)
    for rank, code in enumerate(codes):
        said = (folder / f"{rank}.err").read_text()[-2000:].strip()
        if code:
            broken(f"rank {rank} ends with {code}: {said.rpartition(chr(10))[2]}", said)
    return [file.read_text() for file in files]


# What a rank runs: a generator and its arguments. Each line is one of its results.
CALL = """
import pickle, sys
function, args = pickle.loads(bytes.fromhex(sys.argv[1]))
for result in function(*args):
    print(pickle.dumps(result).hex())
"""


def call(folder: Path, function: Callable[..., Iterator[Any]], *args: Any) -> list[tuple[Any, ...]]:
    """What a generator of a module yields on each of the ranks."""
    printed = run(["-c", CALL, pickle.dumps((function, args)).hex()], folder)
    return list(
        zip(*([pickle.loads(bytes.fromhex(line)) for line in out.splitlines()] for out in printed), strict=True)
    )


@contextmanager
def serve_on_ranks(folder: Path, *options: str, model: Path = FIXTURE) -> Iterator[Server]:
    """A server on two ranks. The first rank answers."""
    (port,) = free_ports(1)
    command = ["-m", "mlx_lm", "server", "--model", str(model), "--port", str(port), *options]
    with ranks_of(command, folder) as ranks:
        server = Server(ranks[0], port, folder / "0.err")
        server.timeout = SILENCE
        server.wait_until_healthy()
        yield server
