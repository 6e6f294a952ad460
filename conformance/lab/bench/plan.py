"""How much to measure: the sizes of a full run and of a quick run."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.lab.bench.cells import LEAST_REPEATS
from conformance.lab.bench.tasks import WORKLOADS


@dataclass(frozen=True)
class Plan:
    """How much one run measures, and how often."""

    repeats: int = 5
    # Without a gain the differences are hundredths, so prose gets this many times as many repetitions.
    prose_factor: int = 3
    tokens: int = 80
    prompts: int = 2
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    # Neurons in each MLP of the widened fixture: 24 M parameters.
    hidden: int = 15_360
    contexts: tuple[int, ...] = (2048, 8192)
    turns: int = 4
    lengths: tuple[int, ...] = (1, 2, 3, 5, 9, 16)
    block_contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    clients: tuple[int, ...] = (1, 2, 4, 8)


FULL = Plan()
# It only checks that the benchmark works.
QUICK = Plan(
    repeats=LEAST_REPEATS,
    prose_factor=1,
    tokens=12,
    prompts=1,
    workloads=("echo", "delete", "prose"),
    hidden=512,
    contexts=(1024,),
    turns=2,
    lengths=(1, 2, 5),
    block_contexts=(128, 256),
    clients=(1, 2),
)
