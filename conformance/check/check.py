"""Decode prompts plain and drafted, compare every pair of runs, and say what a difference is.

python -m conformance check --model conformance/fixture
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.draft import DraftOptions, DraftStats
from mlx_lm.draft.model import block_costs
from mlx_lm.generate import speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache

from conformance import first_line
from conformance.check.prompts import Unusable, built_in, encode
from conformance.check.verdicts import CLEAR, EXACT, FAULT, NEAR_TIE, Verdict, judge
from conformance.drafters import Scripted
from conformance.oracle.recorder import Block, Run, block_of, differ_at, fed, gaps, plain

RUNS = 3
# The run whose drafts are wrong on purpose, and the longest of them.
DEPTHS, SCRIPTED = "every depth", 4
CANNOT = """\
Plain decoding fails, with nothing drafted: {said}
The model does not run on this device as it is, so nothing can be said of drafting.
(Mixtures of experts in 16 bits do not run on a CPU; in 32 or 4 bits they do.)"""
# Near ties of a run that are printed; the JSON file has all of them.
SHOWN = 5
ADVICE = {
    0: "exact: drafting changes no token of this model on this device.",
    1: """\
near ties only: the state is right after every rollback, but a block of tokens is rounded in another way than single
tokens on this device, and candidates that are closer than that change places. Both texts are the model's. For the text
of plain decoding, pass draft_margin="auto" (here: --draft-margin auto), or the number that
`python -m conformance probe` prints.""",
    2: """\
FAULT: a state or a choice is wrong, which rounding does not explain. Do not use drafting with this model. Please report
the file that --json writes, the model and its revision, and the versions above.""",
}
UNSTEADY = """\
not deterministic: plain decoding does not repeat itself here, with nothing drafted. Drafting cannot be exact where
there is no one text to be equal to; the verdicts above compare with clean replays all the same."""
EXITS = (EXACT, NEAR_TIE, FAULT)
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
        return max((verdict.kind for verdict in self.verdicts.values()), key=EXITS.index)


def drafted(model: Any, prompt: Sequence[int], n: int, strategy: Any, eos: Collection[int] = (), **options: Any) -> Run:
    """Decode as a user drafts, and keep what the run saw. Without costs for them, drafts are fed whole."""
    run, owners = Run([*prompt], make_prompt_cache(model), stats=DraftStats()), list[Block]()

    def note(*progress: int) -> None:
        if progress[0] == progress[1]:
            owners.append(blocks[-1])

    def noted(steps: Iterator[Any]) -> Iterator[Any]:
        for step in steps:
            # When a token is yielded, the row of the next one has been taken from the last block that was fed.
            owners.append(blocks[-1])
            yield step

    with fed(model, block_of) as blocks:
        steps = speculative_generate_step(
            mx.array(prompt),
            model,
            draft_strategy=strategy,
            disable_adaptive_gate="draft_costs" not in options,
            max_tokens=n,
            prompt_cache=run.cache,
            prompt_progress_callback=note,
            eos_token_ids=eos,
            stats=run.stats,
            **options,
        )
        run.take(noted(steps), eos)
        steps.close()
    run.owners = owners[: len(run.rows)]
    return run.leave(model)


def examine(
    model: Any, name: str, prompt: Sequence[int], ends: Any, strategy: Callable[[], Any], say: Say, **options: Any
) -> Report:
    """Decode one prompt in all ways, up to the same ends."""
    say("plain")
    try:
        first, *others = [plain(model, prompt, **ends) for _ in range(RUNS)]
    except Exception as error:
        raise Unusable(CANNOT.format(said=first_line(error))) from error
    report = Report(name, len(prompt), first.tokens)
    for run in others:
        same = differ_at(run.tokens, first.tokens)
        report.plain_differ += [same] * (run.tokens != first.tokens)
        # The row at which they part is of the same text.
        report.floor = max([report.floor, *gaps(run.rows[: same + 1], first.rows[: same + 1])])
    decode = partial(drafted, model, prompt, **ends)
    ways: dict[str, Callable[[], Run]] = {
        f"drafted {number}": lambda: decode(strategy=strategy(), **options) for number in range(1, RUNS + 1)
    }
    # Drafts that are wrong at each place in turn, whatever the text is like.
    wrong = Scripted(first.text, max(first.text) + 1)
    scripted = {"strategy": wrong, "num_draft_tokens": SCRIPTED, "draft_margin": options["draft_margin"]}
    ways[DEPTHS] = lambda: decode(**scripted)
    known: list[tuple[Run, Verdict]] = []
    for what, way in ways.items():
        say(what)
        try:
            run = way()
        except Exception as error:
            why = f"drafting raises {first_line(error)}, and plain decoding does not"
            report.verdicts[what] = Verdict(FAULT, False, 0.0, position=0, why=why)
            continue
        say(f"{what}: clean replays")
        # Runs that are the same share a verdict.
        equal = (one for one in known if one[0].tokens == run.tokens and not any(gaps(one[0].all_rows, run.all_rows)))
        known.append(next(equal, None) or (run, judge(model, run, first, report.floor)))
        report.verdicts[what] = known[-1][1]
        if what != DEPTHS:
            report.pairs += RUNS
            report.equal += [one.tokens for one in (first, *others)].count(run.tokens)
            report.tokens_a_forward = len(run.tokens) / max(run.stats.forwards, 1)
            report.strategy, report.reason = run.stats.strategy, run.stats.reason
    return report


def lines_of(report: Report, decode: Callable[[int], str]) -> Iterator[str]:
    """What is said of one prompt."""
    bits = all(verdict.bits for what, verdict in report.verdicts.items() if what != DEPTHS)
    yield f"{report.name}: {report.n_prompt} tokens in, {len(report.tokens)} out"
    yield f"  pairs     {report.equal} of {report.pairs} have the same tokens{', bit for bit' if bits else ''}"
    because = f", {report.reason}" if report.reason else ""
    yield f"  drafts    {report.tokens_a_forward:.2f} tokens a forward pass, {report.strategy}{because}"
    for position in report.plain_differ:
        yield f"  PLAIN     two plain runs differ at token {position}: the model itself is not deterministic here"
    for verdict in {id(verdict): verdict for verdict in report.verdicts.values()}.values():
        said = "exact: tokens, log probabilities and the cache that is left"
        if not verdict.bits:
            said = f"exact: tokens; log probabilities within the noise of clean replays ({verdict.noise:.1e})"
        if verdict.kind == NEAR_TIE:
            said = f"{len(verdict.near_ties)} tokens are near ties, the state is that of clean replays"
        if verdict.kind == FAULT:
            said = f"the state or the choice is wrong\n    FAULT at token {verdict.position}: {verdict.why}"
        yield f"  verdict   {', '.join(what for what, one in report.verdicts.items() if one is verdict)}: {said}"
        for tie in verdict.near_ties[:SHOWN] if verdict.kind == NEAR_TIE else ():
            single = f"{decode(tie.single)!r} ({tie.single}) leads by {tie.single_lead:.3g} in single steps"
            drafted = f"{decode(tie.drafted)!r} ({tie.drafted}) by {tie.drafted_lead:.3g} in a block of {tie.block}"
            note = " (so much noise is no rounding: see probe)" if tie.single_lead > CLEAR else ""
            yield f"    near tie at token {tie.position}: {single}, {drafted}; noise {tie.noise:.2g}{note}"


def main(args: argparse.Namespace, model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """Examine every prompt, print what was found, and return it."""
    prompts, reports = args.prompts or built_in(), list[Report]()
    # The table of the device, which the clock does not change: the runs of a prompt draft alike.
    costs = None if args.ungated else block_costs(model).table
    options = {"num_draft_tokens": args.num_draft_tokens, "draft_margin": args.draft_margin}
    gated = {} if costs is None else {"draft_costs": costs}
    draft = DraftOptions(args.draft_type)
    for number, (name, messages) in enumerate(prompts.items(), 1):
        prompt, ends = encode(tokenizer, messages), {"n": args.max_tokens, "eos": tokenizer.eos_token_ids}

        def step(what: str, where: str = f"{number}/{len(prompts)} {name}: ") -> None:
            say(where + what)

        reports.append(examine(model, name, prompt, ends, lambda: draft.make_strategy(model), step, **options, **gated))
        say("")
        print("\n".join(lines_of(reports[-1], lambda token: str(tokenizer.decode([token])))), flush=True)
    unsteady = any(report.plain_differ for report in reports)
    differ = unsteady or any(report.equal < report.pairs for report in reports)
    code = max(int(differ), *(EXITS.index(report.kind) for report in reports))
    told = not unsteady or any(report.kind != EXACT for report in reports)
    print("", *[UNSTEADY] * unsteady, *[ADVICE[code]] * told, sep="\n")
    table = {} if costs is None else dict(zip(costs.lengths, costs.costs, strict=True))
    found = [asdict(report) | {"verdict": report.kind} for report in reports]
    about = {"draft_type": args.draft_type, "num_draft_tokens": args.num_draft_tokens, "margin": args.draft_margin}
    return {**about, "costs": table, "prompts": found, "exit": code}
