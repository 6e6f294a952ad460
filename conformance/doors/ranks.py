"""Run several ranks on this machine with the ring backend, as mlx.launch does, but with a time limit."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance import ROOT
from conformance.doors.programs import Program, program
from conformance.doors.server.process import free_ports


class Stuck(Exception):
    """The ranks did not end in time."""


@contextmanager
def ranks_of(arguments: Sequence[str], folder: Path, n: int = 2, typed: str = "") -> Iterator[list[Program]]:
    """Start a program as n ranks, which write to RANK.out and RANK.err in a folder. They end with the context."""
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(n)]))
    ranks: list[Program] = []
    try:
        for rank in range(n):
            env = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts), "PYTHONUNBUFFERED": "1"}
            out, err = folder / f"{rank}.out", folder / f"{rank}.err"
            ranks.append(program(arguments, out, err=err, typed=typed, env=env, cwd=ROOT))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def run(arguments: Sequence[str], folder: Path, limit: float, n: int = 2) -> list[str]:
    """Run a program as n ranks, and return what each prints.

    Raises:
        RuntimeError: if a rank fails.
        Stuck: if the ranks take longer than the limit, in seconds.
    """
    with ranks_of(arguments, folder, n) as ranks:
        end = time.monotonic() + limit
        while any(process.poll() is None for process in ranks) and time.monotonic() < end:
            if any(process.poll() for process in ranks):
                # The other ranks would wait for the one that failed.
                break
            time.sleep(0.05)
        codes = [process.poll() for process in ranks]
    told = [((folder / f"{rank}.out").read_text(), (folder / f"{rank}.err").read_text()) for rank in range(n)]
    if any(codes):
        raise RuntimeError("\n".join(f"rank {rank}: {err[-2000:]}" for rank, (_, err) in enumerate(told)))
    if None in codes:
        raise Stuck(
            "\n".join(f"rank {rank} printed: {out[-500:]}\n{err[-500:]}" for rank, (out, err) in enumerate(told))
        )
    return [out for out, _ in told]


# What a rank runs: a function and its arguments, and the last line that it prints is what comes back.
CALL = """
import pickle, sys
function, args = pickle.loads(bytes.fromhex(sys.argv[1]))
print(pickle.dumps(function(*args)).hex())
"""


def call(folder: Path, limit: float, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What a function of a module returns on each of two ranks."""
    printed = run(["-c", CALL, pickle.dumps((function, args)).hex()], folder, limit)
    return [pickle.loads(bytes.fromhex(out.splitlines()[-1])) for out in printed]
