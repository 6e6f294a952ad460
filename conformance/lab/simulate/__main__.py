"""Estimate what drafting gains, without a model: recorded streams, the package's loop, and a table of block costs.

python -m conformance.lab.simulate              # the answers of SmolLM2, with the block costs of three devices
python -m conformance.lab.simulate --kinds      # one table: the default strategy by kind of work
python -m conformance.lab.simulate --others     # one table: the lookups of other programs, with our planner and alone
python -m conformance.lab.simulate --messages FILE --tokenizer DIR    # conversations of your own, turn by turn

The speed is the cost of plain decoding divided by the cost of the blocks. It leaves out the time of drafting itself.
Answers that run into a loop have a row of their own and count in no mean. The last two columns are the limits: an
oracle that knows which earlier place is copied next, and one that knows the answer.

FILE has a JSON object a line with "messages" in OpenAI's form, and "tools" if there are any. Or it is a list of runs
with a "traj" of such messages, as tau-bench's. Each turn of the assistant is a request, and the conversation before it
is its prompt. An edit is an answer of 60 tokens or more, of which more than half stands in runs of 16 or more that its
prompt has, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mlx_lm.draft.planner import MAX_AUTO_DRAFT
from mlx_lm.models.base import SHORT_BLOCK

from conformance.arguments import at_least_one, parser
from conformance.lab.simulate import messages
from conformance.lab.simulate.page import beside_others, by_kind, by_turn
from conformance.lab.simulate.rivals import RIVALS, limits
from conformance.lab.simulate.run import TABLES, Row, costs_of, makers, run
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
    group.add_argument("--messages", type=Path, metavar="FILE", help="conversations of your own")
    options.set_defaults(source="answers")
    devices = f"devices whose block costs are taken: of {', '.join(TABLES)} (default: all), and files of probe --json"
    add("--costs", nargs="+", type=costs_of, default=[], metavar="NAME|FILE", help=devices)
    add("--bound", type=at_least_one, help="the longest draft (default: the one of 'auto')")
    add("--ungated", action="store_true", help="always feed whole drafts, as disable_adaptive_gate does")
    encoders = options.add_mutually_exclusive_group()
    encoders.add_argument("--words", action="store_true", help="made-up streams with one token for each word")
    encoders.add_argument("--tokenizer", type=Path, metavar="DIR", help="of --messages, with its chat template")
    one = options.add_mutually_exclusive_group()
    one.add_argument("--kinds", dest="one", action="store_const", const=by_kind, help=by_kind.__doc__)
    one.add_argument("--others", dest="one", action="store_const", const=beside_others, help=beside_others.__doc__)
    labels = list(makers() | RIVALS)
    add("--only", nargs="+", choices=labels, default=labels, metavar="NAME", help="; ".join(labels))
    args = options.parse_args()
    if (args.messages is None) != (args.tokenizer is None):
        options.error("--messages and --tokenizer go together")
    tables = dict(args.costs)
    if not tables.keys() & TABLES.keys():
        tables = TABLES | tables
    (what, make), one_table = SOURCES[args.source], args.one
    if args.messages is None:
        found = make(words() if args.words else bpe())
    else:
        what, one_table = args.messages.name, args.one or partial(by_turn, tables=tables)
        try:
            found = messages.load(args.messages, args.tokenizer)
        except (OSError, ValueError) as error:
            options.exit(2, f"{args.messages} with the tokenizer {args.tokenizer} cannot be used: {error}\n")
    if one_table is not None:
        print(f"Speed: {what}\n\n{one_table(found)}")
        return
    bound = args.bound or (SHORT_BLOCK - 1 if args.ungated else MAX_AUTO_DRAFT)
    for name, costs in tables.items():
        known = makers() | RIVALS
        rows = {label: run(known[label], found, costs, bound=bound, gated=not args.ungated) for label in args.only}
        rows |= limits(found, costs)
        for value, title in TITLES.items():
            print(f"{title}: {what}, costs of {name}\n\n{show(rows, value)}\n", flush=True)


if __name__ == "__main__":
    main()
