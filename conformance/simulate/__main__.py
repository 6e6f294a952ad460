"""Estimate what drafting gains, without a model: recorded streams, the package's Planner and a table of block costs.

python -m conformance.simulate                  # a CPU
python -m conformance.simulate --costs m4       # an M4 Pro
python -m conformance.simulate --edits          # edits all over a text

The speed is the cost of plain decoding divided by the cost of the blocks. It leaves out the time of drafting itself.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.draft import (
    BlockCosts,
    DraftStats,
    EditStrategy,
    LearnedCosts,
    NgramModStrategy,
    NgramModTable,
    NgramSimpleStrategy,
    Planner,
    SuffixStrategy,
)
from mlx_lm.draft.drafter import MAX_AUTO_DRAFT
from mlx_lm.models.base import SHORT_BLOCK

from conformance.simulate.baselines import RIVALS
from conformance.testing.texts import edits
from conformance.testing.texts.recorded_streams import NAMES, VOCAB, Request, Stream, bpe, streams, words

# Measured with a bf16 llama of 24 M parameters on one CPU core.
CPU = BlockCosts((1, 2, 3, 5, 9, 17), (1, 1.33, 1.67, 2.37, 3.78, 7.15))
# Reported for an M4 Pro with 4-bit weights.
M4 = BlockCosts((1, 2, 3, 4, 6, 8), (1, 1.03, 1.22, 1.47, 2.07, 2.69))
# A data-centre GPU, limited by its memory bandwidth.
GPU = BlockCosts((1, 2, 64), (1, 1.02, 1.3))
TABLES = {"cpu": CPU, "m4": M4, "gpu": GPU}
# A stream needs this many tokens to count as the worst one: in a shorter one a single draft weighs too much.
LEAST = 60

Make = Callable[[], Any]
# Turns a cost, in passes of one token, into seconds.
Clock = Callable[[float], float]


def makers() -> dict[str, Make]:
    """The package's strategies. Responses share one ngram-mod table, as in a server."""
    table = NgramModTable(vocab_size=VOCAB)
    return {
        "edit": EditStrategy,
        "suffix": SuffixStrategy,
        "ngram-simple": NgramSimpleStrategy,
        "ngram-mod": lambda: NgramModStrategy(table),
    }


@dataclass
class Result:
    """How many tokens came out, forward passes ran and tokens were fed, and the cost in passes of one token."""

    emitted: int = 0
    forwards: int = 0
    fed: int = 0
    spent: float = 0.0

    def __add__(self, other: Result) -> Result:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Result(*(a + b for a, b in pairs))

    @property
    def speed(self) -> float:
        return self.emitted / self.spent

    @property
    def tokens_a_forward(self) -> float:
        return self.emitted / self.forwards

    @property
    def fed_a_token(self) -> float:
        return self.fed / self.emitted

    @property
    def wrong_a_right(self) -> float:
        """Rejected drafted tokens for each accepted one."""
        return (self.fed - self.emitted) / max(self.emitted - self.forwards, 1)


def decode(
    strategy: Any,
    request: Request,
    costs: BlockCosts,
    bound: int = MAX_AUTO_DRAFT,
    gated: bool = True,
    learned: LearnedCosts | None = None,
    clock: Clock | None = None,
) -> tuple[Result, list[list[int]]]:
    """Draft, verify and accept, as ``draft_generate_step`` does. Also returns the drafts.

    The planner knows ``costs``. With ``learned`` it knows only what that has learned from the times of the ``clock``.
    """
    answer, result, drafts = request.answer, Result(), []
    planner = Planner(strategy, bound, DraftStats(), (learned or costs) if gated else None, request.eos)
    planner.vocab_size = VOCAB
    unseen, ahead, done = request.prompt, False, 0
    while done < len(answer):
        draft: list[int] = []
        if not ahead:
            planner.observe(unseen)
            unseen = []
            draft = planner.plan(len(answer) - done - 1)
        drafts.append(draft)
        wanted = answer[done : done + len(draft)]
        n_right = next((i for i, pair in enumerate(zip(draft, wanted, strict=True)) if len(set(pair)) > 1), len(draft))
        cost = costs(1 + len(draft))
        result += Result(1 + n_right, 1, 1 + len(draft), cost)
        if learned is not None:
            learned.learn(1 + len(draft), clock(cost) if clock else cost)
        unseen = unseen + wanted[:n_right]
        # Plain decoding feeds the next token before it is known.
        ahead = planner.idle and n_right == len(draft)
        if ahead:
            planner.observe(unseen)
            unseen = []
            ahead = planner.runs_ahead()
        planner.accept(n_right)
        unseen = [*unseen, answer[done + n_right]]
        done += 1 + n_right
    planner.close(0, unseen)
    return result, drafts


@dataclass
class Row:
    """The results of one strategy for each workload, and its worst stream."""

    by_name: dict[str, Result]
    worst: float = math.inf
    worst_name: str = ""

    def mean(self, value: str) -> float:
        return geometric_mean(getattr(result, value) for result in self.by_name.values())


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def run(make: Make, recorded: Sequence[Stream], costs: BlockCosts = CPU, **options: Any) -> Row:
    """Decode every stream. Each request gets a new strategy."""
    row = Row({})
    for one in recorded:
        result = Result()
        for request in one.requests:
            result += decode(make(), request, costs, **options)[0]
        row.by_name[one.name] = row.by_name.get(one.name, Result()) + result
        if one.n_answered >= LEAST and result.speed < row.worst:
            row.worst, row.worst_name = result.speed, f"{one.name}, {one.n_answered} tokens"
    return row


TITLES = {
    "speed": "Implied speed",
    "tokens_a_forward": "Tokens a forward pass",
    "fed_a_token": "Tokens fed for a token of the answer",
}


def show(rows: dict[str, Row], value: str) -> str:
    """A Markdown table with a row for each workload and a column for each strategy."""
    names = next(iter(rows.values())).by_name
    lines = [f"| | {' | '.join(rows)} |", "| --- |" + " --- |" * len(rows)]
    lines += [
        f"| {name} | " + " | ".join(f"{getattr(row.by_name[name], value):.2f}" for row in rows.values()) + " |"
        for name in names
    ]
    lines.append("| geometric mean | " + " | ".join(f"{row.mean(value):.2f}" for row in rows.values()) + " |")
    if value == "speed":
        lines.append("| worst stream | " + " | ".join(f"{row.worst:.3f}" for row in rows.values()) + " |")
        lines.append("| which | " + " | ".join(row.worst_name for row in rows.values()) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--costs", choices=TABLES, default="cpu", help="the device that the block costs are of (default: %(default)s)"
    )
    parser.add_argument(
        "--edits", action="store_true", help="simulate edits all over a text instead of the usual workloads"
    )
    parser.add_argument("--bound", type=int, help="the longest draft (default: the one of 'auto')")
    parser.add_argument(
        "--ungated", action="store_true", help="always feed whole drafts, as disable_adaptive_gate does"
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="how many streams of each workload and size (default: %(default)s)"
    )
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--words", action="store_true", help="one token for each word, without the fixture's tokenizer")
    labels = list(makers() | RIVALS)
    parser.add_argument("--only", nargs="+", choices=labels, default=labels, metavar="NAME", help="; ".join(labels))
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    names = edits.NAMES if args.edits else NAMES
    recorded = streams(seeds, encode=words() if args.words else bpe(), names=names)
    options = {
        "costs": TABLES[args.costs],
        "bound": args.bound or (SHORT_BLOCK - 1 if args.ungated else MAX_AUTO_DRAFT),
        "gated": not args.ungated,
    }
    compared = makers() | RIVALS
    rows = {label: run(compared[label], recorded, **options) for label in args.only}
    for value, title in TITLES.items():
        print(f"{title}\n\n{show(rows, value)}\n")


if __name__ == "__main__":
    main()
