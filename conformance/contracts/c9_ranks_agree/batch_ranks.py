"""Decode a batch on several ranks, for conformance/contracts/c9_ranks_agree/test_batch_ranks.py. Each rank runs

python -m conformance.contracts.c9_ranks_agree.batch_ranks [--alone] METHOD CALL

where METHOD is what raises at the given call, in the strategy that the first rank has for the first row. It prints the
responses as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import mlx.core as mx
from mlx_lm.draft.batch_planner import BatchPlanner
from mlx_lm.generate import BatchGenerator

from conformance.testing.decode.batches import FREE, Partly, Request, alone, break_part, insert
from conformance.testing.models.architectures import build

N = 24
PROMPTS = ([7, 3, 9, 4, 7, 3, 9], [5, 1, 5, 1, 5])


def fail_at_once(self: BatchPlanner, uid: int, function: Any, *args: Any) -> Any:
    """A fault: what a strategy raises ends its row before the other ranks hear of it."""
    try:
        return function(*args)
    except Exception as e:
        self.errors[uid] = e


def main(method: str, at: int) -> None:
    group = mx.distributed.init(strict=True, backend="ring")
    mx.random.seed(0)
    model = build("llama")
    requests = [Request(p, N, Partly([*p, *alone(model, p, N).tokens], 0.5)) for p in PROMPTS]
    if group.rank() == 0:
        break_part(requests[0], method, at)
    generator = BatchGenerator(model, draft_costs=FREE, draft_group=group)
    rows: dict[int, list[Any]] = {insert(generator, request): [] for request in requests}
    while responses := generator.next_generated():
        for response in responses:
            rows[response.uid].append([response.token, response.finish_reason])
    print(json.dumps(list(rows.values())), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="plant the fault that each rank ends the row alone")
    parser.add_argument("method", help="a method of the strategy")
    parser.add_argument("call", type=int, help="the call of it that raises")
    args = parser.parse_args()
    if args.alone:
        BatchPlanner._attempt = fail_at_once
    main(args.method, args.call)
