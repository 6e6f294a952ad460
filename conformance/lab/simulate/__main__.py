"""Estimate what drafting gains, without a model: recorded streams, the package's loop, and a table of block costs.

python -m conformance.lab.simulate              # the answers of SmolLM2, with the block costs of three devices
python -m conformance.lab.simulate --kinds      # one table: the default strategy by kind of work
python -m conformance.lab.simulate --others     # one table: the lookups of other programs, with our planner and alone

The speed is the cost of plain decoding divided by the cost of the blocks. It leaves out the time of drafting itself.
Answers that run into a loop have a row of their own and count in no mean. The last two columns are the limits: an
oracle that knows which earlier place is copied next, and one that knows the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from mlx_lm.draft.planner import MAX_AUTO_DRAFT
from mlx_lm.models.base import SHORT_BLOCK

from conformance.arguments import at_least_one, parser
from conformance.lab.simulate.page import beside_others, by_kind
from conformance.lab.simulate.rivals import RIVALS, limits
from conformance.lab.simulate.run import TABLES, Row, makers, run
from conformance.lab.streams import Encode, Stream, bpe, load, streams, words
from conformance.lab.texts import edits
from conformance.tables import table

# Of made-up streams, for each kind and size.
SEEDS = range(100, 103)
TITLES = {
    "speed": "Implied speed",
    "tokens_a_forward": "Tokens a forward pass",
    "fed_a_token": "Tokens fed for a token of the answer",
}
# What can be simulated, by the option that asks for it; the first needs none. The text is above the tables, too.
SOURCES: dict[str, tuple[str, Callable[[Encode], list[Stream]]]] = {
    "answers": ("recorded answers of SmolLM2", lambda _: load("answers")),
    "sampled": ("recorded answers of SmolLM2, sampled", lambda _: load("sampled")),
    "real-edits": ("real edits, known answers", lambda _: load("edits")),
    "fixture": ("made-up work, known answers", lambda encode: streams(SEEDS, encode=encode)),
    "edits": ("made-up edits, known answers", lambda encode: streams(SEEDS, encode=encode, names=edits.NAMES)),
}


def show(rows: dict[str, Row], value: str) -> str:
    """A Markdown table with a row for each workload and a column for each strategy."""
    names = next(iter(rows.values())).by_name
    lines = [[name, *(getattr(row.by_name[name], value) for row in rows.values())] for name in names]
    lines.append(["geometric mean", *(row.mean(value) for row in rows.values())])
    if value == "speed":
        lines.append(["worst stream", *(f"{row.worst:.3f}" for row in rows.values())])
        lines.append(["which", *(row.worst_name for row in rows.values())])
    return table(["", *rows], lines)


def main() -> None:
    options = parser(__doc__, "python -m conformance.lab.simulate")
    add = options.add_argument
    group = options.add_mutually_exclusive_group()
    for name in list(SOURCES)[1:]:
        group.add_argument(f"--{name}", dest="source", action="store_const", const=name, help=SOURCES[name][0])
    options.set_defaults(source="answers")
    add("--costs", nargs="+", choices=TABLES, default=list(TABLES), help="the devices whose block costs are taken")
    add("--bound", type=at_least_one, help="the longest draft (default: the one of 'auto')")
    add("--ungated", action="store_true", help="always feed whole drafts, as disable_adaptive_gate does")
    add("--words", action="store_true", help="made-up streams with one token for each word")
    one = options.add_mutually_exclusive_group()
    one.add_argument("--kinds", dest="one", action="store_const", const=by_kind, help=by_kind.__doc__)
    one.add_argument("--others", dest="one", action="store_const", const=beside_others, help=beside_others.__doc__)
    labels = list(makers() | RIVALS)
    add("--only", nargs="+", choices=labels, default=labels, metavar="NAME", help="; ".join(labels))
    args = options.parse_args()
    what, make = SOURCES[args.source]
    found = make(words() if args.words else bpe())
    if args.one is not None:
        print(f"Speed: {what}\n\n{args.one(found)}")
        return
    bound = args.bound or (SHORT_BLOCK - 1 if args.ungated else MAX_AUTO_DRAFT)
    for name in args.costs:
        known, costs = makers() | RIVALS, TABLES[name]
        rows = {label: run(known[label], found, costs, bound=bound, gated=not args.ungated) for label in args.only}
        rows |= limits(found, costs)
        for value, title in TITLES.items():
            print(f"{title}: {what}, costs of {name}\n\n{show(rows, value)}\n", flush=True)


if __name__ == "__main__":
    main()
