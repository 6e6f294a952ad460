"""Estimate what drafts gain in a batch, without a model: recorded streams, the package's BatchPlanner, a cost table.

python -m conformance.lab.simulate.batches

Each client has one row of the batch. When a request ends, the next one takes its row. The speed is the cost of plain
batching divided by the cost of the blocks that were fed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from mlx_lm.draft import BlockCosts, DraftStats, Planner, SuffixStrategy, device_costs
from mlx_lm.draft.batch_planner import BatchPlanner
from mlx_lm.draft.planner import MAX_AUTO_DRAFT

from conformance.lab.texts.recorded_streams import VOCAB, Request, Stream, streams
from conformance.tables import line, table
from conformance.testing.arguments import parser

SIZES = (1, 2, 4, 8, 16)
DEVICES = ("metal", "cuda")
COPYING, OTHERS = ("rename", "json", "echo", "replace"), ("prose", "code")
MIXED = (*COPYING[:2], *OTHERS)
# In "beside" only the workloads that copy are drafted.
KINDS: dict[str, tuple[str, ...]] = {"copying": COPYING, "mixed": MIXED, "beside": MIXED, "prose": OTHERS[:1]}
# How many requests a row serves, so that rows come and go.
ROUNDS = 4
Make = Callable[[], Any]


@dataclass
class Row:
    """A request in the batch, and the cost of its time there, in passes of the batch without drafts."""

    request: Request
    done: int = 0
    spent: float = 0.0

    @property
    def left(self) -> int:
        return len(self.request.answer) - self.done

    def accepted(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft are right."""
        pairs = enumerate(zip(draft, self.request.answer[self.done :], strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(draft), self.left))


@dataclass
class Result:
    """The blocks that were fed, as (rows, tokens in each row), their cost, and the cost of plain batching."""

    blocks: list[tuple[int, int]] = field(default_factory=list)
    spent: float = 0.0
    plain: float = 0.0
    ended: list[Row] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.plain / self.spent


class Batch:
    """Decodes rows as ``GenerationBatch`` does. The recorded answer takes the place of a model."""

    def __init__(self, costs: BlockCosts, make: Make = SuffixStrategy, bound: int = MAX_AUTO_DRAFT) -> None:
        self.costs, self.make, self.bound = costs, make, bound
        self.rows, self.result, self.next_uid = dict[int, Row](), Result(), 0
        self.planner = BatchPlanner(None, costs)
        self.planner._vocab_size = VOCAB
        # True if the next block is fed before the tokens of the last one are known.
        self.ahead = False

    def join(self, request: Request, drafted: bool = True) -> None:
        uid, self.next_uid = self.next_uid, self.next_uid + 1
        self.rows[uid] = Row(request)
        if drafted:
            planner = Planner(self.make(), self.bound, DraftStats(), self.costs)
            self.planner.add(uid, planner, list(request.prompt))

    def step(self) -> None:
        """Feed a block. A row stays for one more block after its last token, unless that token was drafted."""
        uids = list(self.rows)
        drafts: list[list[int]] = [[] for _ in uids]
        # A row joins with a pass of its own, which has no drafts.
        if not self.ahead and any(row.done for row in self.rows.values()):
            drafts = self.planner.plan(uids, [row.left if row.done else 0 for row in self.rows.values()])
        n_tokens = 1 + max(map(len, drafts))
        plain, spent = self.costs(len(uids)), self.costs(len(uids) * n_tokens)
        self.result.blocks.append((len(uids), n_tokens))
        self.result.spent += spent
        ended = [uid for uid, row in self.rows.items() if row.left == 0]
        self._end(ended)
        going_on = list(self.rows)
        self.ahead = n_tokens == 1 and bool(going_on) and self.planner.runs_ahead(going_on)
        by_uid = dict(zip(uids, drafts, strict=True))
        n_accepted = [self.rows[uid].accepted(by_uid[uid]) for uid in going_on]
        if n_tokens > 1:
            self.planner.accept(going_on, n_accepted)
        self.result.plain += plain * len(ended) / len(uids)
        for uid, n in zip(going_on, n_accepted, strict=True):
            self._go_on(uid, n, spent / plain, plain / len(uids))
        assert not self.planner.errors

    def _go_on(self, uid: int, n_accepted: int, spent: float, plain: float) -> None:
        row = self.rows[uid]
        said = row.request.answer[row.done : row.done + n_accepted + 1]
        for token in said:
            self.planner.observe(uid, token)
        row.done, row.spent = row.done + len(said), row.spent + spent
        self.result.plain += len(said) * plain
        if len(said) == n_accepted:
            # The last token was drafted. Plain batching needs one more pass to feed it.
            self.result.plain += plain
            self._end([uid])

    def _end(self, uids: Iterable[int]) -> None:
        for uid in uids:
            self.result.ended.append(self.rows.pop(uid))
            self.planner.end(uid)


Asked = tuple[Request, bool]


def decode(asked: Sequence[Asked], size: int, costs: BlockCosts, make: Make = SuffixStrategy) -> Result:
    """Keep ``size`` rows busy until the last request has begun. A request says whether it is drafted."""
    batch = Batch(costs, make)
    for request, drafted in islice(cycle(asked), ROUNDS * size):
        batch.join(request, drafted)
        while len(batch.rows) == size:
            batch.step()
    return batch.result


def together(asked: Sequence[Asked], costs: BlockCosts, make: Make = SuffixStrategy) -> Result:
    """Decode all requests at once, until each is answered."""
    batch = Batch(costs, make)
    for request, drafted in asked:
        batch.join(request, drafted)
    while batch.rows:
        batch.step()
    return batch.result


def requests(kind: str, size: int = 300, seeds: Sequence[int] = range(100, 102)) -> list[Asked]:
    """The last request of each conversation. The workloads take turns."""
    recorded = [streams(seeds, [size], names=[name]) for name in KINDS[kind]]
    turns: Iterator[tuple[Stream, ...]] = zip(*recorded, strict=True)
    beside = kind == "beside"
    return [(s.requests[-1], not beside or s.name in COPYING) for turn in turns for s in turn]


def main() -> None:
    parser(__doc__, "python -m conformance.lab.simulate.batches").parse_args()
    print(table(["requests", *(f"{device}, {n}" for device in DEVICES for n in SIZES)]))
    for kind in KINDS:
        asked = requests(kind)
        print(line([kind, *(decode(asked, n, device_costs(device)).speed for device in DEVICES for n in SIZES)]))


if __name__ == "__main__":
    main()
