"""What a trained head gains on streams that it was not trained on, alone and with a lookup, by what blocks cost.

python -m conformance.lab.trained
python -m conformance.lab.trained --reported    # a head that is as often right as others report of those of checkpoints
python -m conformance.lab.trained --reported --messages FILE --tokenizer DIR    # those of conformance.lab.simulate
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from mlx_lm.draft import BlockCosts, EditStrategy, HeadDraftStrategy, Proposal
from mlx_lm.draft.corrected import new_counts

from conformance.arguments import parser
from conformance.lab.recorded import FILES, is_judge, read
from conformance.lab.simulate import messages
from conformance.lab.simulate.__main__ import TITLES
from conformance.lab.simulate.page import drafters
from conformance.lab.simulate.run import TABLES, Make, Row, decode, run
from conformance.lab.streams import LOOPS, VOCAB, Request, Stream, load, recorded
from conformance.tables import table

# A token of the head of SmolLM2, in forward passes: by the share of the model's weights that it reads.
COST = 0.066
# Kinds of work by what they copy, the least first: a file, and the kinds of it, or all.
WORK: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "prose": ("answers", ("answer", "summarize", "quote")),
    "code": ("answers", ("complete", "document", "examples", "next version")),
    "JSON": ("answers", ("call", "table to JSON", "JSON to table", "look up")),
    "edited code": ("answers", ("rename", "annotate", "rename solution", "schema")),
    "sampled answers": ("sampled", None),
    "real edits": ("edits", None),
}


@dataclass(frozen=True)
class HeadDrafts:
    """What a head drafts after each token of a recorded answer, and how likely each token is to it, in percent."""

    kind: str
    source: str
    tokens: list[list[int]]
    chances: list[list[int]]


class Known(HeadDraftStrategy):
    """A head whose drafts are known at each place of an answer."""

    def __init__(self, n_prompt: int, lookup: Any) -> None:
        super().__init__(lookup)
        self.place, self.draft = -n_prompt, self.known

    def known(self, token: int, n: int) -> Proposal:
        raise NotImplementedError

    def observe(self, tokens: Sequence[int]) -> None:
        super().observe(tokens)
        self.place += len(tokens)


class Recorded(Known):
    """The drafts of a head, from the file, after each token of an answer."""

    def __init__(self, drafts: HeadDrafts, n_prompt: int, lookup: Any = None) -> None:
        super().__init__(n_prompt, lookup)
        self.drafts = drafts

    def known(self, token: int, n: int) -> Proposal:
        chances = [percent / 100 for percent in self.drafts.chances[self.place]]
        return Proposal(self.drafts.tokens[self.place][:n], chances[:n])


# How often the first, second and third token of a checkpoint's head are right if those before are, as reported for
# Qwen3.5 and others, and what a token may cost.
REPORTED, REPORTED_COSTS = (0.85, 0.7, 0.6), (0.05, 0.06, 0.1)


class Reported(Known):
    """Drafts what is to come, as often right as it is said to be, and knows how likely each token is."""

    def __init__(self, request: Request, cost: float, rates: Sequence[float], lookup: Any) -> None:
        super().__init__(len(request.prompt), lookup)
        self.answer, self.cost, self.rates = request.answer, cost, rates

    def known(self, token: int, n: int) -> Proposal:
        drafted, likely, is_right = [], [], True
        for i in range(n):
            rate, dice = self.rates[min(i, len(self.rates) - 1)], Random(f"{self.place} {i}")
            chance = dice.betavariate(2 * rate, 2 * (1 - rate)) if 0 < rate < 1 else rate
            there = self.answer[self.place + i : self.place + i + 1]
            is_right = is_right and dice.random() < chance and bool(there)
            drafted.append(there[0] if is_right else VOCAB - 1)
            likely.append(chance)
        return Proposal(drafted, likely)


def fresh(n: int = 8) -> list[Stream]:
    """Texts of which nothing comes twice."""
    texts = [[Random(f"{seed} {i}").randrange(VOCAB - 1) for i in range(400)] for seed in range(n)]
    return [Stream("fresh text", 100, i, (Request(text[:100], text[100:]),)) for i, text in enumerate(texts)]


def reported(
    found: Sequence[Stream],
    costs: BlockCosts,
    cost: float,
    rates: Sequence[float] = REPORTED,
    make: Make = EditStrategy,
) -> Row:
    """The results of such a head with a lookup."""
    row, counts = Row(), new_counts()
    for one in found:
        for request in one.requests:
            strategy = Reported(request, cost, rates, make())
            # All requests learn of it
            strategy.counts = counts
            row.add(one, decode(strategy, request, costs)[0])
    return row


def show_reported(sources: dict[str, Sequence[Stream]]) -> None:
    heads: dict[str, tuple[float, Sequence[float]]] = {f"head of {cost}": (cost, REPORTED) for cost in REPORTED_COSTS}
    heads |= {"half right": (0.06, (0.5,)), "always wrong": (0.06, (0.0,))}
    for device, costs in TABLES.items():
        lines = []
        for name, found in sources.items():
            made = [run(EditStrategy, found, costs), *(reported(found, costs, *head) for head in heads.values())]
            made.append(reported(found, costs, 0.06, make=[*drafters().values()][-1]))
            lines.append([name, *(f"{row.mean('speed'):.2f} ({row.worst:.2f})" for row in made)])
        columns = ["", "lookup", *heads, "head of 0.06 and the memory"]
        print(f"Implied speed, costs of {device}: mean of kinds (worst)\n\n{table(columns, lines)}\n")


def judged(work: str) -> Iterator[tuple[Stream, HeadDrafts]]:
    """The streams that the head was not trained on, each with its drafts. Answers that run into a loop are left out."""
    what, kinds = WORK[work]
    found = (HeadDrafts(**one) for one in read(Path(__file__).parent / "drafts" / f"{what}.jsonl.gz"))
    drafts = {(one.kind, one.source): one for one in found}
    for one in read(FILES[what]):
        if is_judge(one["source"]) and (kinds is None or one["kind"] in kinds):
            of_one = drafts[one["kind"], one["source"]]
            made = recorded(one, one["prompt"], one["answer"][: len(of_one.tokens)])
            if made.name != LOOPS:
                yield made, of_one


def rows(streams: Sequence[tuple[Stream, HeadDrafts]], costs: BlockCosts) -> dict[str, Row]:
    """The results of the lookup alone, of the head alone and of both."""
    found = {"edit": run(EditStrategy, [one for one, _ in streams], costs), "head": Row(), "both": Row()}
    # What all requests learn of a head
    counts = {"head": new_counts(), "both": new_counts()}
    for one, drafts in streams:
        request = one.requests[0]
        for name, lookup in (("head", None), ("both", EditStrategy())):
            strategy = Recorded(drafts, len(request.prompt), lookup)
            strategy.cost, strategy.counts = COST, counts[name]
            found[name].add(one, decode(strategy, request, costs)[0])
    return found


def main() -> None:
    options = parser(__doc__, "python -m conformance.lab.trained")
    options.add_argument("--reported", action="store_true", help="a head that is as often right as others report")
    options.add_argument("--messages", type=Path, metavar="FILE", help="conversations of your own, with --reported")
    options.add_argument("--tokenizer", type=Path, metavar="DIR", help="of --messages, with its chat template")
    args = options.parse_args()
    if (args.messages is None) != (args.tokenizer is None) or (args.messages and not args.reported):
        options.error("--reported, --messages and --tokenizer go together")
    if args.messages:
        show_reported({args.messages.name: messages.load(args.messages, args.tokenizer)})
        return
    if args.reported:
        show_reported({"fresh text": fresh(), "answers": load("answers"), "real edits": load("edits")})
        return
    columns = [f"{device}: {name}" for device in TABLES for name in ("edit", "head", "both")]
    found: dict[str, list[Row]] = {}
    counts: dict[str, list[int]] = {}
    for work in WORK:
        streams = list(judged(work))
        counts[work] = [len(streams), sum(one.n_answered for one, _ in streams)]
        found[work] = [row for costs in TABLES.values() for row in rows(streams, costs).values()]
    worst = [f"{min(row.worst for row in column):.3f}" for column in zip(*found.values(), strict=True)]
    for value in ("tokens_a_forward", "speed"):
        lines = [[work, *counts[work], *(row.mean(value) for row in found[work])] for work in WORK]
        lines += [["worst stream", "", "", *worst]] if value == "speed" else []
        print(f"{TITLES[value]}\n\n{table(['', 'streams', 'tokens', *columns], lines)}\n")


if __name__ == "__main__":
    main()
