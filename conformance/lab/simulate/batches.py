"""Estimate what drafts gain in a batch: the package's BatchGenerator, answers in place of a model, and a cost table.

python -m conformance.lab.simulate.batches             # made-up texts that copy, and others
python -m conformance.lab.simulate.batches --prose     # the default drafts on what SmolLM2 answered in prose

So many requests are answered at once. When one ends, the next one takes its row. The speed is the cost of plain
batching divided by the cost of the blocks that were fed. A row joins with a pass of its own, which counts in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle, islice, repeat
from typing import Any

import mlx.core as mx
from mlx_lm.draft import (
    BlockCosts,
    DraftStats,
    EditStrategy,
    LearnedCosts,
    Proposal,
    SuffixStrategy,
    device_costs,
)
from mlx_lm.draft.options import planner_for
from mlx_lm.draft.planner import MAX_AUTO_DRAFT
from mlx_lm.generate import BatchGenerator

from conformance.arguments import parser
from conformance.lab.simulate.run import Make
from conformance.lab.streams import VOCAB, Request, Stream, load, streams
from conformance.tables import table

SIZES = (1, 2, 4, 8, 16)
DEVICES = ("metal", "cuda")
ALL = {"CPU": "cpu-16bit", "M4 Pro": "metal", "H100": "cuda"}
COPYING, OTHERS = ("rename", "json", "echo", "replace"), ("prose", "code")
MIXED = (*COPYING[:2], *OTHERS)
# In "beside" only the workloads that copy are drafted.
KINDS: dict[str, tuple[str, ...]] = {"copying": COPYING, "mixed": MIXED, "beside": MIXED, "prose": OTHERS[:1]}
# What a token of a head costs, in passes.
COST_OF_HEAD = 0.1
# How many requests a row serves, so that rows come and go.
ROUNDS = 4
# A request, and whether it is drafted.
Asked = tuple[Request, bool]


def says(answer: Sequence[int]) -> Callable[[mx.array], mx.array]:
    """A sampler that draws an answer, whatever the logits are."""
    said = chain(answer, repeat(0))
    return lambda logprobs: mx.array([next(said)])


class Batch:
    """Takes the place of the model of a ``BatchGenerator``, and counts what its blocks cost."""

    def __init__(
        self,
        asked: Sequence[Asked],
        size: int,
        costs: BlockCosts,
        make: Make,
        learned: LearnedCosts | None = None,
    ) -> None:
        self.costs, self.requests = costs, [request for request, _ in asked]
        # What is known of a model before it is called.
        self._vocab_size, self._is_stepped = VOCAB, False
        self.generator = BatchGenerator(
            self, completion_batch_size=size, prefill_batch_size=size, draft_costs=learned or costs
        )
        for request, drafted in asked:
            self.generator.insert(
                [request.prompt[-1:]],
                [len(request.answer)],
                # All of a prompt is cached.
                all_tokens=[request.prompt[:-1]],
                samplers=[says(request.answer)],
                planners=[planner_for(make(), MAX_AUTO_DRAFT, DraftStats(), costs) if drafted else None],
            )
        # The cost of all blocks, of plain batching, and of the time of each row in passes without drafts.
        self.spent = self.plain = self.share = 0.0
        self.fed = False
        self.of_row = dict.fromkeys(range(len(asked)), 0.0)
        self.ended: list[int] = []
        self.said: dict[int, list[int]] = {uid: [] for uid in range(len(asked))}

    @property
    def speed(self) -> float:
        return self.plain / self.spent

    def make_cache(self) -> list[Any]:
        return []

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        n_rows, n_tokens = tokens.shape
        uids = self.generator._generation_batch.uids
        if uids and not self.fed:
            self.fed = True
            alone, block = self.costs(n_rows), self.costs(n_rows * n_tokens)
            self.spent += block
            self.share = alone / n_rows
            for uid in uids:
                self.of_row[uid] += block / alone
        return mx.zeros((n_rows, n_tokens, 1))

    def draft(self, tokens: mx.array, cache: list[Any], n: int) -> list[Proposal]:
        """What a head drafts that says the last token again. All rows wait for it."""
        for uid in self.generator._generation_batch.uids:
            self.of_row[uid] += COST_OF_HEAD * n
        return [Proposal(row * n, [1.0] * n) for row in tokens.tolist()]

    def step(self) -> None:
        self.fed = False
        for response in self.generator.next()[1]:
            self.plain += self.share
            said = self.said[response.uid]
            said.append(response.token)
            if response.finish_reason is not None:
                assert said == self.requests[response.uid].answer
                self.ended.append(response.uid)


def decode(asked: Sequence[Asked], size: int, costs: BlockCosts, make: Make = SuffixStrategy) -> Batch:
    """Keep ``size`` rows busy until the last request has begun, and the first of the last ones has ended."""
    batch = Batch(list(islice(cycle(asked), ROUNDS * size)), size, costs, make)
    while len(batch.ended) <= (ROUNDS - 1) * size:
        batch.step()
    return batch


def requests(kind: str, size: int = 300, seeds: Sequence[int] = range(100, 102)) -> list[Asked]:
    """The last request of each conversation. The workloads take turns."""
    recorded = [streams(seeds, [size], names=[name]) for name in KINDS[kind]]
    turns: Iterator[tuple[Stream, ...]] = zip(*recorded, strict=True)
    return [(s.requests[-1], kind != "beside" or s.name in COPYING) for turn in turns for s in turn]


def answers() -> list[Asked]:
    return [(one.requests[0], True) for one in load("answers") if one.name == "answer"]


def main() -> None:
    options = parser(__doc__, "python -m conformance.lab.simulate.batches")
    options.add_argument("--prose", action="store_true", help="what SmolLM2 answered in prose, by device")
    if options.parse_args().prose:
        costs = {name: device_costs(device) for name, device in ALL.items()}
        found = ((name, [decode(answers(), n, one, EditStrategy).speed for n in SIZES]) for name, one in costs.items())
        print(table(["clients", *map(str, SIZES)], ([name, *map("{:.3f}".format, speeds)] for name, speeds in found)))
        return
    cells = [(device, n) for device in DEVICES for n in SIZES]
    rows = ([kind, *(decode(requests(kind), n, device_costs(device)).speed for device, n in cells)] for kind in KINDS)
    print(table(["requests", *(f"{device}, {n}" for device, n in cells)], rows))


if __name__ == "__main__":
    main()
