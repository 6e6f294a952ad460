"""Decode prompts plain and drafted, compare every pair of runs, and say what a difference is.

python -m conformance check --model conformance/fixture
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from mlx_lm.draft import BlockCosts
from mlx_lm.draft.model import block_costs

from conformance.check.decoding import Drafting, drafted
from conformance.check.prompts import Unusable, built_in, encode
from conformance.check.verdicts import EXACT, FAULT, NEAR_TIE, Divergence, Verdict, judge
from conformance.drafters import Scripted
from conformance.oracle.recorder import Recording, Task, gaps, plain, rows_of

RUNS = 3
# The longest draft of the run whose drafts are wrong on purpose.
SCRIPTED = 4
CANNOT = """\
Plain decoding fails, with nothing drafted: {said}
The model does not run on this device as it is, so nothing can be said of drafting.
(Mixtures of experts in 16 bits do not run on a CPU; in 32 or 4 bits they do.)"""
# Near ties of a run that are printed; the JSON file has all of them.
SHOWN = 5
EXITS = {EXACT: 0, NEAR_TIE: 1, FAULT: 2}
Say = Callable[[str], None]


@dataclass
class Repeats:
    """What plain runs of one prompt share."""

    first: Recording
    tokens: list[list[int]]
    # The largest difference between the rows of two of them, as far as their tokens are the same.
    floor: float
    # Where a run leaves the first one.
    differ: list[int]


@dataclass
class Report:
    """One prompt."""

    name: str
    n_prompt: int
    tokens: list[int]
    equal: int = 0
    pairs: int = 0
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    # Where two plain runs differ, and how far their log probabilities are apart before that.
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
        different = self.plain_differ or self.equal < self.pairs
        return max(EXITS[self.kind], int(bool(different)))


def repeats(model: Any, task: Task, say: Say) -> Repeats:
    say("plain 1")
    made = Repeats(plain(model, task), [], 0.0, [])
    made.tokens.append(made.first.tokens)
    for number in range(2, RUNS + 1):
        say(f"plain {number}")
        run = plain(model, task)
        made.tokens.append(run.tokens)
        same = shared(run.tokens, made.first.tokens)
        if run.tokens != made.first.tokens:
            made.differ.append(same)
        # The row at which they part is of the same text.
        made.floor = max([made.floor, *gaps(run.rows[: same + 1], made.first.rows[: same + 1])])
    return made


def shared(a: list[int], b: list[int]) -> int:
    """The length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def drafted_runs(
    model: Any, task: Task, drafting: Drafting, right: list[int], say: Say
) -> Iterator[tuple[str, Recording | Verdict]]:
    """Each run, or the verdict where drafting raises what plain decoding did not."""
    for number in range(1, RUNS + 1):
        say(f"drafted {number}")
        yield f"drafted {number}", caught(drafted, model, task, drafting)
    say("every depth")
    # Whatever the text is like: drafts that are wrong at each place in turn.
    script = Scripted([*task.prompt, *right], max(*task.prompt, *right) + 1)
    bounded = Drafting(num_draft_tokens=SCRIPTED, margin=drafting.margin)
    yield "every depth", caught(drafted, model, task, bounded, script)


def caught(decode: Callable[..., Recording], *args: Any) -> Recording | Verdict:
    try:
        return decode(*args)
    except Exception as error:
        why = f"drafting raises {named(error)}, and plain decoding does not"
        return Verdict(FAULT, False, 0.0, math.inf, position=0, why=why)


def named(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def examine(model: Any, name: str, task: Task, drafting: Drafting, say: Say) -> Report:
    """Decode one prompt in all ways."""
    try:
        base = repeats(model, task, say)
    except Exception as error:
        raise Unusable(CANNOT.format(said=named(error))) from error
    report = Report(name, len(task.prompt), base.first.tokens, plain_differ=base.differ, floor=base.floor)
    known: list[tuple[Recording, Verdict]] = []
    for what, run in drafted_runs(model, task, drafting, base.first.tokens, say):
        if isinstance(run, Verdict):
            report.verdicts[what] = run
            continue
        say(f"{what}: clean replays")
        same = [
            verdict for one, verdict in known if one.tokens == run.tokens and not any(gaps(rows_of(one), rows_of(run)))
        ]
        verdict = same[0] if same else judge(model, task, run, base.first, base.floor)
        report.verdicts[what] = verdict
        if what == "every depth":
            continue
        known = known or [(run, verdict)]
        report.pairs += len(base.tokens)
        report.equal += sum(tokens == run.tokens for tokens in base.tokens)
        report.tokens_a_forward = len(run.tokens) / max(run.stats.forwards, 1)
        report.strategy, report.reason = run.stats.strategy, run.stats.reason
    return report


def lines_of(report: Report, decode: Callable[[int], str]) -> Iterator[str]:
    """What is said of one prompt."""
    drafted_kinds = [verdict for what, verdict in report.verdicts.items() if what != "every depth"]
    bits = ", bit for bit" if all(verdict.bits for verdict in drafted_kinds) else ""
    yield f"{report.name}: {report.n_prompt} tokens in, {len(report.tokens)} out"
    yield f"  pairs     {report.equal} of {report.pairs} have the same tokens{bits}"
    yield f"  drafts    {report.tokens_a_forward:.2f} tokens a forward pass, {report.strategy}{because(report)}"
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


def because(report: Report) -> str:
    return f", {report.reason}" if report.reason else ""


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


def exit_code(reports: list[Report]) -> int:
    return max(report.code for report in reports)


def advice(reports: list[Report]) -> list[str]:
    said = [UNSTEADY] if any(report.plain_differ for report in reports) else []
    code = exit_code(reports)
    kinds = {report.kind for report in reports}
    return [*said, ADVICE[code]] if not said or kinds != {EXACT} else said


def as_json(report: Report) -> dict[str, Any]:
    found = asdict(report)
    for verdict in found["verdicts"].values():
        # JSON has no number for that.
        verdict["ratio"] = verdict["ratio"] if math.isfinite(verdict["ratio"]) else None
    return {**found, "verdict": report.kind}


def say_of(say: Say, step: str, what: str) -> None:
    say(step + what)


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
        reports.append(examine(model, name, task, drafting, partial(say_of, say, step)))
        say("")
        print("\n".join(lines_of(reports[-1], lambda token: str(tokenizer.decode([token])))), flush=True)
    print()
    print("\n".join(advice(reports)))
    options = {"draft_type": args.draft_type, "num_draft_tokens": args.num_draft_tokens, "margin": args.draft_margin}
    table = {} if costs is None else dict(zip(costs.lengths, costs.costs, strict=True))
    return {**options, "costs": table, "prompts": list(map(as_json, reports)), "exit": exit_code(reports)}
