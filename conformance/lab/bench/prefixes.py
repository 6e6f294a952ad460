"""What prefixes save in the session of an agent: tokens fed, seconds to the first token, bytes held; and whether the
answers are those of a server that has cached nothing.

python -m conformance.lab.bench.prefixes [--models llama qwen3_next] [--repeats 5] [--entries 10]
python -m conformance.lab.bench.prefixes --quick     # a short session and tiny models, once each

Three servers take turns with the same requests: with checkpoints, without them, and the release without the series. The
models have random weights, in float32, and give the answers of the session, with thinking. The template keeps it in the
answers behind the last message of the user, and leaves it out of those before. Each session is asked twice: in a batch,
and with a seed, for which the server decodes a request alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from conformance import ROOT
from conformance.arguments import at_least_one, parser
from conformance.lab.bench.prefix_session import FULL, NAMES, QUICK, Asked, Plan, save, session, tokenizer
from conformance.series.patches import commits, unpack
from conformance.tables import number, table

WITH, WITHOUT, STOCK = "with", "without", "release"
OPTIONS: dict[str, list[str]] = {
    WITH: ["--prompt-cache-checkpoints", "8"],
    WITHOUT: ["--prompt-cache-checkpoints", "0"],
    STOCK: [],
}
DOORS = {"batch": None, "alone": 0}
MIB = 2**20

Answer = dict[str, Any]
# What the servers answered to each request, each time.
Rounds = dict[int, list[dict[str, Answer]]]


class Server:
    """A server in its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, **request: Any) -> Answer:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer: Answer = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def servers(name: str, plan: Plan) -> Iterator[dict[str, Server]]:
    """A server for each way, with the same model."""
    with ExitStack() as stack:
        folder, release = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        unpack(commits()[0], release)
        save(name, plan, folder)
        made = {}
        for way, options in OPTIONS.items():
            path = [str(release)] * (way == STOCK) + [str(ROOT), os.environ.get("PYTHONPATH", "")]
            env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "HF_HUB_OFFLINE": "1"}
            command = [sys.executable, "-m", "conformance.lab.bench.prefix_server", "--model", str(folder)]
            command += ["--log-level", "ERROR", "--prompt-cache-size", str(plan.entries), *options]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, cwd=ROOT)
            # Its input ends first, then it is waited for.
            made[way] = Server(stack.enter_context(process))
        yield made


def in_turns(made: dict[str, Server], asked: Asked, repeats: int, door: str, forget: bool = False) -> Rounds:
    """Ask all servers the whole session, one request after the other. Another one comes first each time."""
    encode, rounds = tokenizer().encode, Rounds()
    for repeat in range(repeats):
        ways = [*made][repeat % len(made) :] + [*made][: repeat % len(made)]
        for i, (messages, said) in enumerate(asked.values()):
            text = f"{said['reasoning_content']}\n</think>\n{said['content']}<|end|>"
            ask = {"messages": messages, "tokens": encode(text, add_special_tokens=False).ids, "seed": DOORS[door]}
            answers = {way: made[way].ask(**ask, forget=forget or not i) for way in ways}
            rounds.setdefault(i, []).append(answers)
    return rounds


@dataclass
class Result:
    """What one model did. The lists have an entry for each request."""

    fed: dict[str, list[int]]
    seconds: dict[str, list[float]]
    held: dict[str, float]
    prompts: list[int]
    equal: bool
    distance: float


def measured(made: dict[str, Server], plan: Plan, door: str) -> Result:
    asked = session(plan)
    cold = [each[STOCK] for (each,) in in_turns({STOCK: made[STOCK]}, asked, 1, door, forget=True).values()]
    rounds = in_turns(made, asked, plan.repeats, door)
    pairs = [(cold[i], answers[WITH]) for i, each in rounds.items() for answers in each]
    logprobs = [(a, b) for x, y in pairs for a, b in zip(x["logprobs"], y["logprobs"], strict=True)]
    return Result(
        {way: [each[0][way]["fed"] for each in rounds.values()] for way in OPTIONS},
        {way: [median(a[way]["seconds"] for a in each) for each in rounds.values()] for way in OPTIONS},
        {way: [*rounds.values()][-1][-1][way]["held"] / MIB for way in OPTIONS},
        [answer["prompt"] for answer in cold],
        all(x["greedy"] == y["greedy"] for x, y in pairs),
        max(abs(a - b) for a, b in logprobs),
    )


Results = dict[tuple[str, str], Result]


def every(names: Iterable[str], plan: Plan) -> Iterator[tuple[tuple[str, str], Result]]:
    for name in names:
        with servers(name, plan) as made:
            for door in DOORS:
                yield (name, door), measured(made, plan, door)


def ratio(results: Results, name: str, door: str) -> float:
    """The tokens fed with checkpoints, for each one that a model feeds whose cache can be trimmed to any length."""
    return sum(results[name, door].fed[WITH]) / sum(results[NAMES[0], door].fed[WITH])


def totals(results: Results) -> str:
    """The whole session: tokens fed, seconds to the first tokens, MiB at its end, and how far the answers are."""
    three = ", ".join(OPTIONS)
    head = ["model", "asked", "prompts", f"fed {three}", "llama = 1", f"seconds {three}", f"MiB {three}", "answers"]
    rows = []
    for (name, door), one in results.items():
        sums = [[sum(values) for values in each.values()] for each in (one.fed, one.seconds)]
        cells = [" / ".join(map(number, values)) for values in (*sums, one.held.values())]
        said = ["equal" if one.equal else "differ", f"{one.distance:.0e}"]
        rows.append([name, door, sum(one.prompts), cells[0], ratio(results, name, door), *cells[1:], *said])
    return table([*head, "log probs apart"], rows)


def requests(results: Results, asked: Asked, unit: str) -> str:
    """What each request took with checkpoints, by the release, and by the release alone."""
    names, rows = dict.fromkeys(name for name, _ in results), []
    for i, what in enumerate(asked):
        row: list[Any] = [what, results[NAMES[0], "batch"].prompts[i]]
        for name in names:
            batch, alone = (getattr(results[name, door], unit) for door in DOORS)
            row.append(" / ".join(map(number, (batch[WITH][i], batch[STOCK][i], alone[STOCK][i]))))
        rows.append(row)
    return table([unit, "prompt", *names], rows)


def main() -> int:
    options = parser(__doc__)
    add = options.add_argument
    add("--models", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    add("--repeats", type=at_least_one, help=f"default: {FULL.repeats}")
    add(
        "--entries",
        type=at_least_one,
        default=FULL.entries,
        help="prompts that are cached (default: %(default)s)",
    )
    add("--quick", action="store_true", help="a short session and tiny models, once each")
    args = options.parse_args()
    plan = QUICK if args.quick else FULL
    plan = replace(plan, repeats=args.repeats or plan.repeats, entries=args.entries)
    results = dict(every(dict.fromkeys((NAMES[0], *args.models)), plan))
    shown = [requests(results, session(plan), unit) for unit in ("fed", "seconds")]
    print(totals(results), *shown, sep="\n\n")
    return int(not all(one.equal for one in results.values()))


if __name__ == "__main__":
    sys.exit(main())
