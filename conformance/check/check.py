"""Decode prompts plain and drafted, compare every pair of runs, and say what a difference is.

python -m conformance check --model conformance/fixture
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from mlx_lm.draft import BlockCosts
from mlx_lm.draft.model import block_costs

from conformance.check.decoding import Drafting, drafted
from conformance.check.prompts import Unusable, built_in, encode
from conformance.check.verdicts import EXACT, FAULT, NEAR_TIE, Divergence, Verdict, judge
from conformance.drafters import Scripted
from conformance.oracle.recorder import Recording, Task, gaps, plain, rows_of

RUNS = 3
# The run whose drafts are wrong on purpose, and the longest of them.
DEPTHS, SCRIPTED = "every depth", 4
CANNOT = """\
Plain decoding fails, with nothing drafted: {said}
The model does not run on this device as it is, so nothing can be said of drafting.
(Mixtures of experts in 16 bits do not run on a CPU; in 32 or 4 bits they do.)"""
# Near ties of a run that are printed; the JSON file has all of them.
SHOWN = 5
EXITS = {EXACT: 0, NEAR_TIE: 1, FAULT: 2}
Say = Callable[[str], None]


@dataclass
class Report:
    """One prompt."""

    name: str
    n_prompt: int
    tokens: list[int]
    # Of the pairs of a plain run and a drafted one, those with the same tokens.
    equal: int = 0
    pairs: int = 0
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    # Where a plain run leaves the first one, and how far their log probabilities are apart before that.
    plain_differ: list[int] = field(default_factory=list)
    floor: float = 0.0
    tokens_a_forward: float = 0.0
    strategy: str = ""
    reason: str | None = None

    @property
    def kind(self) -> str:
        kinds = {verdict.kind for verdict in self.verdicts.values()}
        return next((kind for kind in (FAULT, NEAR_TIE) if kind in kinds), EXACT)

    @property
    def code(self) -> int:
        return max(EXITS[self.kind], int(bool(self.plain_differ) or self.equal < self.pairs))


@dataclass(frozen=True)
class Steps:
    say: Say
    where: str

    def __call__(self, what: str) -> None:
        self.say(f"{self.where}{what}")


def shared(a: list[int], b: list[int]) -> int:
    """The length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def named(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def plain_runs(model: Any, name: str, task: Task, say: Say) -> tuple[Report, Recording, list[list[int]]]:
    """A report of what the plain runs share, the first of them, and the tokens of all."""
    say("plain 1")
    first = plain(model, task)
    report, tokens = Report(name, len(task.prompt), first.tokens), [first.tokens]
    for number in range(2, RUNS + 1):
        say(f"plain {number}")
        run = plain(model, task)
        tokens.append(run.tokens)
        same = shared(run.tokens, first.tokens)
        if run.tokens != first.tokens:
            report.plain_differ.append(same)
        # The row at which they part is of the same text.
        report.floor = max([report.floor, *gaps(run.rows[: same + 1], first.rows[: same + 1])])
    return report, first, tokens


def drafted_run(model: Any, task: Task, drafting: Drafting, what: str, right: list[int]) -> Recording:
    if what != DEPTHS:
        return drafted(model, task, drafting)
    # Whatever the text is like: drafts that are wrong at each place in turn.
    script = Scripted([*task.prompt, *right], max(*task.prompt, *right) + 1)
    return drafted(model, task, Drafting(num_draft_tokens=SCRIPTED, margin=drafting.margin), script)


def examine(model: Any, name: str, task: Task, drafting: Drafting, say: Say) -> Report:
    """Decode one prompt in all ways."""
    try:
        report, first, tokens = plain_runs(model, name, task, say)
    except Exception as error:
        raise Unusable(CANNOT.format(said=named(error))) from error
    known: list[tuple[Recording, Verdict]] = []
    for what in (*(f"drafted {number}" for number in range(1, RUNS + 1)), DEPTHS):
        say(what)
        try:
            run = drafted_run(model, task, drafting, what, first.tokens)
        except Exception as error:
            why = f"drafting raises {named(error)}, and plain decoding does not"
            report.verdicts[what] = Verdict(FAULT, False, 0.0, math.inf, position=0, why=why)
            continue
        say(f"{what}: clean replays")
        same = [verdict for one, verdict in known if is_same(one, run)]
        report.verdicts[what] = verdict = same[0] if same else judge(model, task, run, first, report.floor)
        if what != DEPTHS:
            known = known or [(run, verdict)]
            report.pairs += len(tokens)
            report.equal += tokens.count(run.tokens)
            report.tokens_a_forward = len(run.tokens) / max(run.stats.forwards, 1)
            report.strategy, report.reason = run.stats.strategy, run.stats.reason
    return report


def is_same(a: Recording, b: Recording) -> bool:
    return a.tokens == b.tokens and not any(gaps(rows_of(a), rows_of(b)))


def lines_of(report: Report, decode: Callable[[int], str]) -> Iterator[str]:
    """What is said of one prompt."""
    drafted_kinds = [verdict for what, verdict in report.verdicts.items() if what != DEPTHS]
    bits = ", bit for bit" if all(verdict.bits for verdict in drafted_kinds) else ""
    yield f"{report.name}: {report.n_prompt} tokens in, {len(report.tokens)} out"
    yield f"  pairs     {report.equal} of {report.pairs} have the same tokens{bits}"
    because = f", {report.reason}" if report.reason else ""
    yield f"  drafts    {report.tokens_a_forward:.2f} tokens a forward pass, {report.strategy}{because}"
    for position in report.plain_differ:
        yield f"  PLAIN     two plain runs differ at token {position}: the model itself is not deterministic here"
    for whats, verdict in distinct(report.verdicts):
        yield f"  verdict   {whats}: {said(verdict)}"
        if verdict.kind == FAULT:
            yield f"    FAULT at token {verdict.position}: {verdict.why}"
        if verdict.kind == NEAR_TIE:
            yield from (of_tie(tie, decode) for tie in verdict.near_ties[:SHOWN])


def of_tie(tie: Divergence, decode: Callable[[int], str]) -> str:
    single = f"{decode(tie.single)!r} ({tie.single}) leads by {tie.single_lead:.3g} in single steps"
    drafted = f"{decode(tie.drafted)!r} ({tie.drafted}) by {tie.drafted_lead:.3g} in a block of {tie.block}"
    note = " (so much noise is no rounding: see probe)" if tie.clear else ""
    return f"    near tie at token {tie.position}: {single}, {drafted}; noise {tie.noise:.2g}{note}"


def distinct(verdicts: dict[str, Verdict]) -> Iterator[tuple[str, Verdict]]:
    """Runs that are the same share a line."""
    names: dict[int, list[str]] = {}
    for what, verdict in verdicts.items():
        names.setdefault(id(verdict), []).append(what)
    for whats in names.values():
        yield ", ".join(whats), verdicts[whats[0]]


def said(verdict: Verdict) -> str:
    if verdict.kind == EXACT:
        if verdict.bits:
            return "exact: tokens, log probabilities and the cache that is left"
        return f"exact: tokens; log probabilities within the noise of clean replays ({verdict.noise:.1e})"
    if verdict.kind == NEAR_TIE:
        return f"{len(verdict.near_ties)} tokens are near ties, the state is that of clean replays"
    return "the state or the choice is wrong"


ADVICE = {
    0: "exact: drafting changes no token of this model on this device.",
    1: """\
near ties only: the state is right after every rollback, but a block of tokens is rounded in another way than single
tokens on this device, and candidates that are closer than that change places. Both texts are the model's. For the text
of plain decoding, pass draft_margin="auto" (here: --draft-margin auto), or a number that
`python -m conformance probe` recommends.""",
    2: """\
FAULT: a state or a choice is wrong, which rounding does not explain. Do not use drafting with this model. Please report
the file that --json writes, the model and its revision, and the versions above.""",
}
UNSTEADY = """\
not deterministic: plain decoding does not repeat itself here, with nothing drafted. Drafting cannot be exact where
there is no one text to be equal to; the verdicts above compare with clean replays all the same."""


def advice(reports: list[Report], code: int) -> list[str]:
    said = [UNSTEADY] if any(report.plain_differ for report in reports) else []
    return [*said, ADVICE[code]] if not said or {report.kind for report in reports} != {EXACT} else said


def as_json(report: Report) -> dict[str, Any]:
    found = asdict(report)
    for verdict in found["verdicts"].values():
        # JSON has no number for that.
        verdict["ratio"] = verdict["ratio"] if math.isfinite(verdict["ratio"]) else None
    return {**found, "verdict": report.kind}


def main(args: argparse.Namespace, model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """Examine every prompt, print what was found, and return it."""
    prompts = args.prompts or built_in()
    # The table of the device, which the clock does not change: the runs of a prompt draft alike.
    costs: BlockCosts | None = None if args.ungated else block_costs(model).table
    drafting = Drafting(args.draft_type, args.num_draft_tokens, args.draft_margin, costs)
    reports = []
    for number, (name, messages) in enumerate(prompts.items(), 1):
        task = Task(encode(tokenizer, messages), args.max_tokens, frozenset(tokenizer.eos_token_ids))
        step = f"{number}/{len(prompts)} {name}: "
        reports.append(examine(model, name, task, drafting, Steps(say, step)))
        say("")
        print("\n".join(lines_of(reports[-1], lambda token: str(tokenizer.decode([token])))), flush=True)
    code = max(report.code for report in reports)
    print("", *advice(reports, code), sep="\n")
    options = {"draft_type": args.draft_type, "num_draft_tokens": args.num_draft_tokens, "margin": args.draft_margin}
    table = {} if costs is None else dict(zip(costs.lengths, costs.costs, strict=True))
    return {**options, "costs": table, "prompts": list(map(as_json, reports)), "exit": code}
