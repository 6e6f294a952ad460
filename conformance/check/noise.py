"""Measure, for every architecture, how far the logits of a block are from those of single tokens.

python -m conformance.check.noise    a Markdown table of the models whose blocks are not row-identical on this device

Nothing is trimmed here: the differences come from the model's own code and the kernels.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import mlx.core as mx

from conformance.oracle.recorder import Task, plain
from conformance.oracle.replay import noise
from conformance.subjects.architectures import build, runnable
from conformance.tables import line, table
from conformance.testing.arguments import parser

VOCAB = 64
PROMPTS = {"below the window": [5, 9, 3], "past the window": [(7 * i + 3) % VOCAB for i in range(21)]}
TOKENS = {"below the window": 12, "past the window": 24}


def measure(name: str) -> list[float]:
    """The largest difference of a log probability, below and past the windows of the tiny configuration."""
    model = build(name)
    tasks = [Task(tuple(prompt), TOKENS[where]) for where, prompt in PROMPTS.items()]
    return [noise(model, task, plain(model, task)) for task in tasks]


def main() -> int:
    parser(__doc__).parse_args()
    mx.disable_compile()
    names, exact = runnable(), 0
    print(f"mlx-lm {version('mlx-lm')}, mlx {version('mlx')}, {mx.default_device()}, float32\n")
    print(table(["model", *PROMPTS]))
    for number, name in enumerate(names, 1):
        print(f"{number}/{len(names)} {name}", file=sys.stderr, end="\033[K\r")
        found = measure(name)
        if any(found):
            print(line([name, *(f"{value:.0e}" if value else "0" for value in found)]), flush=True)
        else:
            exact += 1
    print(f"\n{exact} of {len(names)} models are row-identical: a block gives the bits of single tokens.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
