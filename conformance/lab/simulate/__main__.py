"""Estimate what drafting gains, without a model: recorded streams, the package's Planner and a table of block costs.

python -m conformance.lab.simulate                  # the answers of SmolLM2, with the block costs of three devices
python -m conformance.lab.simulate --sampled        # answers of it at temperature 0.8 with a seed
python -m conformance.lab.simulate --real-edits     # two releases of a file, formatted code, tables to JSON
python -m conformance.lab.simulate --fixture        # made-up work, with the fixture's tokenizer
python -m conformance.lab.simulate --edits          # made-up edits all over a text

The speed is the cost of plain decoding divided by the cost of the blocks. It leaves out the time of drafting itself.
Answers that run into a loop have a row of their own and count in no mean. The last two columns are the limits: an
oracle that knows which earlier place is copied next, and one that knows the answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
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
from mlx_lm.draft.options import DEFAULT_NGRAM_MOD_SIZE
from mlx_lm.draft.planner import MAX_AUTO_DRAFT
from mlx_lm.models.base import SHORT_BLOCK

from conformance.lab.recorded.streams import PARTS, load
from conformance.lab.simulate.baselines import RIVALS
from conformance.lab.simulate.limit import limits
from conformance.lab.simulate.result import TITLES, Result, Row, show
from conformance.lab.texts import edits
from conformance.lab.texts.recorded_streams import NAMES, VOCAB, Request, Stream, bpe, streams, words
from conformance.testing.arguments import at_least_one, parser

# Measured with a bf16 llama of 24 M parameters on one CPU core.
CPU = BlockCosts((1, 2, 3, 5, 9, 17), (1, 1.33, 1.67, 2.37, 3.78, 7.15))
# Reported for an M4 Pro with 4-bit weights.
M4 = BlockCosts((1, 2, 3, 4, 6, 8), (1, 1.03, 1.22, 1.47, 2.07, 2.69))
# A data-centre GPU, limited by its memory bandwidth.
GPU = BlockCosts((1, 2, 64), (1, 1.02, 1.3))
TABLES = {"cpu": CPU, "m4": M4, "gpu": GPU}
# Of made-up streams, for each kind and size.
SEEDS = range(100, 103)
Make = Callable[[], Any]
# Turns a cost, in passes of one token, into seconds.
Clock = Callable[[float], float]


def makers() -> dict[str, Make]:
    """The package's strategies. Responses share one ngram-mod table, as in a server."""
    table = NgramModTable(DEFAULT_NGRAM_MOD_SIZE, vocab_size=VOCAB)
    return {
        "edit": EditStrategy,
        "suffix": SuffixStrategy,
        "ngram-simple": NgramSimpleStrategy,
        "ngram-mod": lambda: NgramModStrategy(table, lookup=EditStrategy()),
    }


def decode(
    strategy: Any,
    request: Request,
    costs: BlockCosts,
    bound: int = MAX_AUTO_DRAFT,
    gated: bool = True,
    learned: LearnedCosts | None = None,
    clock: Clock | None = None,
    make_planner: Callable[..., Any] | None = None,
) -> tuple[Result, list[list[int]]]:
    """Draft, verify and accept, as ``draft_generate_step`` does. Also returns the drafts.

    The planner knows ``costs``. With ``learned`` it knows only what that has learned from the times of the ``clock``.
    """
    answer, result, drafts = request.answer, Result(), []
    planner = (make_planner or Planner)(
        strategy, bound, DraftStats(), (learned or costs) if gated else None, request.eos
    )
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
        # Only a head takes time to draft, and the stages before heads have none.
        cost = costs(1 + len(draft)) + getattr(planner, "draft_cost", 0.0)
        result += Result(1 + n_right, 1, 1 + len(draft), cost)
        if learned is not None:
            learned.learn(1 + len(draft), clock(cost) if clock else cost)
        unseen = unseen + wanted[:n_right]
        # Plain decoding feeds the next token before it is known.
        ahead = not draft
        if ahead:
            planner.observe(unseen)
            unseen = []
            ahead = planner.runs_ahead()
        planner.accept(n_right)
        unseen = [*unseen, answer[done + n_right]]
        done += 1 + n_right
    planner.close(0, unseen)
    return result, drafts


def run(make: Make, recorded: Sequence[Stream], costs: BlockCosts = CPU, **options: Any) -> Row:
    """Decode every stream. Each request gets a new strategy."""
    row = Row({})
    for one in recorded:
        result = Result()
        for request in one.requests:
            result += decode(make(), request, costs, **options)[0]
        row.add(one, result)
    return row


def made(names: Sequence[str], args: argparse.Namespace) -> list[Stream]:
    return streams(SEEDS, encode=words() if args.words else bpe(), names=names)


# What can be simulated, by the option that asks for it; the first needs none. The text is above the tables, too.
SOURCES: dict[str, tuple[str, Callable[[argparse.Namespace], list[Stream]]]] = {
    "answers": ("recorded answers of SmolLM2", lambda args: load("answers", args.part)),
    "sampled": ("recorded answers of SmolLM2, sampled", lambda args: load("sampled", args.part)),
    "real-edits": ("real edits, known answers", lambda args: load("edits", args.part)),
    "fixture": ("made-up work, known answers", lambda args: made(NAMES, args)),
    "edits": ("made-up edits, known answers", lambda args: made(edits.NAMES, args)),
}
RECORDED = ("answers", "sampled", "real-edits")


def parsed() -> argparse.Namespace:
    options = parser(__doc__, "python -m conformance.lab.simulate")
    add = options.add_argument
    group = options.add_mutually_exclusive_group()
    for name in list(SOURCES)[1:]:
        group.add_argument(f"--{name}", dest="source", action="store_const", const=name, help=SOURCES[name][0])
    options.set_defaults(source="answers")
    add("--costs", nargs="+", choices=TABLES, default=list(TABLES), help="the devices whose block costs are taken")
    add("--part", choices=PARTS, help="half of what is recorded: fitted to, or not")
    add("--bound", type=at_least_one, help="the longest draft (default: the one of 'auto')")
    add("--ungated", action="store_true", help="always feed whole drafts, as disable_adaptive_gate does")
    add("--words", action="store_true", help="made-up streams with one token for each word")
    labels = list(makers() | RIVALS)
    add("--only", nargs="+", choices=labels, default=labels, metavar="NAME", help="; ".join(labels))
    args = options.parse_args()
    if args.part and args.source not in RECORDED:
        options.error(f"--part excludes --{args.source}: only what is recorded has parts")
    return args


def main() -> None:
    args = parsed()
    what, make = SOURCES[args.source]
    recorded = make(args)
    options = {"bound": args.bound or (SHORT_BLOCK - 1 if args.ungated else MAX_AUTO_DRAFT), "gated": not args.ungated}
    for name in args.costs:
        compared, costs = makers() | RIVALS, TABLES[name]
        rows = {label: run(compared[label], recorded, costs, **options) for label in args.only}
        rows |= limits(recorded, costs)
        for value, title in TITLES.items():
            print(f"{title}: {what}, costs of {name}\n\n{show(rows, value)}\n", flush=True)


if __name__ == "__main__":
    main()
