"""What a trained head gains on streams that it was not trained on, alone and with a lookup, by what blocks cost.

python -m conformance.lab.trained
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.draft import BlockCosts, EditStrategy, HeadDraftStrategy, Proposal

from conformance.arguments import parser
from conformance.lab.recorded import FILES, is_judge, read
from conformance.lab.simulate.__main__ import TITLES
from conformance.lab.simulate.run import TABLES, Row, decode, run
from conformance.lab.streams import LOOPS, Stream, recorded
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


class Recorded(HeadDraftStrategy):
    """The drafts of a head, from the file, after each token of an answer."""

    def __init__(self, drafts: HeadDrafts, n_prompt: int, lookup: Any = None) -> None:
        super().__init__(lookup)
        self.drafts, self.place = drafts, -n_prompt
        self.draft = self.known

    def known(self, token: int, n: int) -> Proposal:
        chances = [percent / 100 for percent in self.drafts.chances[self.place]]
        return Proposal(self.drafts.tokens[self.place][:n], chances[:n])

    def observe(self, tokens: Sequence[int]) -> None:
        super().observe(tokens)
        self.place += len(tokens)


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
    for one, drafts in streams:
        request = one.requests[0]
        for name, lookup in (("head", None), ("both", EditStrategy())):
            strategy = Recorded(drafts, len(request.prompt), lookup)
            strategy.cost = COST
            found[name].add(one, decode(strategy, request, costs)[0])
    return found


def main() -> None:
    parser(__doc__, "python -m conformance.lab.trained").parse_args()
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
