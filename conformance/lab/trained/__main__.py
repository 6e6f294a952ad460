"""What a trained head gains on streams that it was not trained on, alone and with a lookup, by what blocks cost.

python -m conformance.lab.trained
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlx_lm.draft import BlockCosts, EditStrategy, HeadDraftStrategy, Proposal

from conformance.arguments import parser
from conformance.lab.recorded.answers import FILES, is_judge, read
from conformance.lab.simulate.__main__ import TITLES
from conformance.lab.simulate.run import TABLES, Row, decode, run
from conformance.lab.streams import LOOPS, Stream, recorded
from conformance.lab.trained import COST, DRAFTS, HeadDrafts
from conformance.tables import line, table

# Kinds of work by what they copy, the least first: a file, and the kinds of it, or all.
WORK: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "prose": ("answers", ("answer", "summarize", "quote")),
    "code": ("answers", ("complete", "document", "examples", "next version")),
    "JSON": ("answers", ("call", "table to JSON", "JSON to table", "look up")),
    "edited code": ("answers", ("rename", "annotate", "rename solution", "schema")),
    "sampled answers": ("sampled", None),
    "real edits": ("edits", None),
}


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
    found = (HeadDrafts(**one) for one in read(DRAFTS / f"{what}.jsonl.gz"))
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
    results = {work: {name: rows(list(judged(work)), costs) for name, costs in TABLES.items()} for work in WORK}
    columns = [(device, name) for device in TABLES for name in ("edit", "head", "both")]
    head = ["", "streams", "tokens", *(f"{device}: {name}" for device, name in columns)]
    for value in ("tokens_a_forward", "speed"):
        print(f"{TITLES[value]}\n\n{table(head)}")
        for work, by_device in results.items():
            streams = [one for one, _ in judged(work)]
            counts = [len(streams), sum(one.n_answered for one in streams)]
            print(line([work, *counts, *(by_device[device][name].mean(value) for device, name in columns)]))
        worst = [min(by_device[device][name].worst for by_device in results.values()) for device, name in columns]
        if value == "speed":
            print(line(["worst stream", "", "", *(f"{one:.3f}" for one in worst)]))
        print(flush=True)


if __name__ == "__main__":
    main()
