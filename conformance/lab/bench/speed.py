"""Compare drafted with plain decoding on a few prompts: a model as slow as a larger one, or a real one with real text.

python -m conformance.lab.bench.speed [--strategies edit suffix ngram-simple ngram-mod]
python -m conformance.lab.bench.speed --model smollm2 --strategies edit --temperature 0.8

Without --model it is the fixture with a wider MLP, which computes the same at the cost of a model of 24 million
parameters. With it the prompts are those of recorded answers: of each kind the first one of the half that nothing
is fitted to. cells.py says how the runs take turns. An answer that runs into a loop is marked: a loop flatters every
drafter.
"""

from __future__ import annotations

import sys
from functools import partial

from mlx_lm import load

from conformance.arguments import at_least_one, parser
from conformance.check.prompts import Unusable
from conformance.lab.bench import models
from conformance.lab.bench.cells import REPEATS, Ready, compared
from conformance.lab.recorded import FILES, is_judge, read
from conformance.smollm2 import MODELS, path_of
from conformance.subjects.prompts import PROMPTS
from conformance.tables import line, table

LOOKUPS = ("edit", "suffix", "ngram-simple", "ngram-mod")
HEAD = ("prompt", "strategy", "speed", "spread", "plain tokens a second", "tokens", "tokens a forward", "fed a token")


def known(subject: models.Subject, is_real: bool) -> dict[str, list[int]]:
    """The prompts by name, in token ids."""
    if not is_real:
        return {name: subject.encode(messages) for name, messages in PROMPTS.items()}
    found = dict[str, list[int]]()
    for one in read(FILES["answers"]):
        if is_judge(one["source"]):
            found.setdefault(one["kind"], one["prompt"])
    return found


def main() -> None:
    options = parser(__doc__)
    add = partial(options.add_argument, help="default: %(default)s")
    add("--tokens", type=at_least_one, default=256)
    add("--strategies", nargs="+", default=list(LOOKUPS), choices=LOOKUPS, metavar="NAME")
    add("--temperature", type=float, default=0.0)
    add("--model", choices=list(MODELS), help="a model of scripts/model.sh")
    add("--prompts", nargs="+", metavar="NAME", help="some of the prompts")
    args = options.parse_args()
    try:
        loaded = load(path_of(args.model)) if args.model else None
    except Unusable as error:
        sys.exit(f"error: {error}")
    subject = models.Subject(args.model, models.weights_of(loaded[0]), *loaded) if loaded else models.larger()
    prompts = known(subject, bool(args.model))
    if unknown := set(args.prompts or ()) - set(prompts):
        options.error(f"--prompts: no {', '.join(sorted(unknown))}; there are {', '.join(prompts)}")
    print(f"{subject.name}, {subject.weights}\n\n{table(HEAD)}")
    for name in args.prompts or prompts:
        ready = Ready(subject, prompts[name], args.tokens, args.temperature)
        for strategy, row in zip(args.strategies, compared(ready, args.strategies, REPEATS), strict=True):
            spread = f"{row['low']:.2f} to {row['high']:.2f}" if row["parity"] else "no parity"
            n_tokens = f"{row['tokens']}{' (a loop)' * row['loop']}"
            counts = (f"{row['plain_tps']:.1f}", n_tokens, row["tokens_per_forward"], row["fed_per_token"])
            print(line([name, strategy, row["speed"], spread, *counts]), flush=True)
    costs = subject.costs
    print(f"\ncosts of blocks, as they were learned: { {n: round(costs(n), 2) for n in costs.table.lengths} }")


if __name__ == "__main__":
    main()
