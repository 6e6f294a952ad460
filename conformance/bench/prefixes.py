"""What prefixes save in the session of an agent: tokens fed, seconds to the first token, bytes held; and whether the
answers are those of a server that has cached nothing.

python -m conformance.bench.prefixes [--models llama qwen3_next] [--repeats 5]
python -m conformance.bench.prefixes --quick     # a short session and tiny models, once each
python -m conformance.bench.prefixes --costs     # what checkpoints cost in a cold read, and where 32k tokens are copied

Three servers take turns with the same requests: with checkpoints, without them, and the release without the series. The
models have random weights, in float32, and give the answers of the session, with thinking. The template keeps it in the
answers behind the last message of the user, and leaves it out of those before. Each session is asked twice: in a batch,
and with a seed, for which the server decodes a request alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from conformance import FIXTURE, ROOT
from conformance.series.patches import commits, unpack
from conformance.testing.arguments import at_least_one, parser
from conformance.testing.models.architectures import CONFIGS, build
from conformance.testing.tables import number, table
from conformance.testing.texts.workloads import Message

WITH, WITHOUT, STOCK = "with", "without", "release"
OPTIONS: dict[str, list[str]] = {
    WITH: ["--prompt-cache-checkpoints", "8"],
    WITHOUT: ["--prompt-cache-checkpoints", "0"],
    STOCK: [],
}
# The tables compare with the first one, whose cache can be trimmed to any length.
NAMES = ("llama", "gemma3_text", "qwen3_next", "mamba2", "lfm2")
RECURRENT = ("qwen3_next", "mamba2")
DOORS = {"batch": None, "alone": 0}
THINKING = "<think>", "</think>"
TEMPLATE = """{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == "user" -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{{- "<|" + m.role + "|>" -}}
{%- if m.reasoning_content and loop.index0 > ns.last -%}
{{- "<think>\n" + m.reasoning_content + "\n</think>\n" -}}
{%- endif -%}
{{- m.content + "<|end|>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|assistant|><think>\n" -}}{%- endif -%}"""
WORDS = "the agent reads a file and calls tools then says what it found in this old part of code for each test".split()
MIB = 2**20

# The messages of each request and its answer.
Asked = dict[str, tuple[list[Message], Message]]
Answer = dict[str, Any]
# What the servers answered to each request, each time.
Rounds = dict[int, list[dict[str, Answer]]]


@dataclass(frozen=True)
class Plan:
    hidden: int = 128
    layers: int = 4
    window: int = 256
    turns: int = 10
    # In words; a word is two or three tokens of the fixture.
    text: int = 40
    repeats: int = 5


FULL = Plan()
QUICK = Plan(hidden=64, layers=2, window=64, turns=4, text=10, repeats=1)


def session(plan: Plan) -> Asked:
    """The messages of each request, by what it is: the same every time."""
    rng = random.Random("session 1")

    def text(words: float) -> str:
        return " ".join(rng.choices(WORDS, k=int(words)))

    def message(role: str, words: float) -> Message:
        return {"role": role, "content": text(words)}

    def answer() -> Message:
        return message("assistant", plan.text / 4) | {"reasoning_content": text(plan.text / 4)}

    tools = [{"name": f"tool_{i}", "description": text(plan.text / 2)} for i in range(4)]
    system: Message = {"role": "system", "content": f"{text(plan.text)}\n{json.dumps(tools)}"}
    history, asked = [system], {}
    for turn in range(plan.turns):
        history.append(message("tool" if turn % 3 else "user", plan.text))
        asked[f"turn {turn + 1}, {history[-1]['role']}"] = [*history], answer()
        history.append(asked[f"turn {turn + 1}, {history[-1]['role']}"][1])
    # The file that a call in the middle returned has changed.
    place = 1 + 2 * (plan.turns // 2)
    old = history[place]["content"].split()
    old[len(old) // 2 : len(old) // 2 + 5] = text(5).split()
    history[place] = history[place] | {"content": " ".join(old)}
    history.append(message("user", plan.text))
    asked["a file has changed"] = asked["the same again"] = history, answer()
    asked["another conversation"] = [system, message("user", plan.text)], answer()
    return asked


def sizes(name: str, plan: Plan) -> dict[str, Any]:
    """What differs from the tiny model of an architecture."""
    size = {"vocab_size": 1026, "eos_token_id": 0, "hidden_size": plan.hidden, "num_hidden_layers": plan.layers}
    size |= {"intermediate_size": 3 * plan.hidden, "max_position_embeddings": 65536}
    every = {"qwen3_next": {"full_attention_interval": plan.layers, "mlp_only_layers": list(range(plan.layers))}}
    every |= {"llama": {"layer_types": None, "sliding_window": None}, "gemma3_text": {"sliding_window": plan.window}}
    every |= {"mamba2": {"num_heads": plan.hidden // 8}, "lfm2": {"block_dim": plan.hidden}}
    every["lfm2"]["layer_types"] = ["conv", "full_attention"] * (plan.layers // 2)
    return CONFIGS[name] | size | every[name] | {"model_type": name}


def tokenizer_of_session() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(FIXTURE / "tokenizer.json"))
    tokenizer.add_tokens(list(THINKING))
    return tokenizer


def save(name: str, plan: Plan, folder: Path) -> Path:
    """Write a model with random weights, and the tokenizer of the fixture with tokens for thinking."""
    config = sizes(name, plan)
    with patch.dict(CONFIGS, {name: config}):
        weights = dict(tree_flatten(build(name).parameters()))
    shutil.copy(FIXTURE / "tokenizer_config.json", folder)
    tokenizer_of_session().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    return folder


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
            command = [sys.executable, "-m", "conformance.bench.prefix_server", "--model", str(folder)]
            command += ["--log-level", "ERROR", *options]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, cwd=ROOT)
            # Its input ends first, then it is waited for.
            made[way] = Server(stack.enter_context(process))
        yield made


def in_turns(made: dict[str, Server], asked: Asked, repeats: int, door: str, forget: bool = False) -> Rounds:
    """Ask all servers the whole session, one request after the other. Another one comes first each time."""
    encode, rounds = tokenizer_of_session().encode, Rounds()
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


def every(names: Iterable[str], plan: Plan) -> Iterator[tuple[str, Result]]:
    for name in names:
        with servers(name, plan) as made:
            for door in DOORS:
                yield f"{name}, {door}", measured(made, plan, door)


def totals(results: dict[str, Result]) -> str:
    head = ["model", "of tokens", *(f"fed {way}" for way in OPTIONS), "fed, llama's = 1"]
    head += [*(f"seconds {way}" for way in OPTIONS), *(f"MiB {way}" for way in OPTIONS), "answers", "furthest"]
    rows = []
    for name, one in results.items():
        fed = {way: sum(one.fed[way]) for way in OPTIONS}
        seconds = [sum(one.seconds[way]) for way in OPTIONS]
        said = ["equal" if one.equal else "differ", f"{one.distance:.0e}"]
        ratio = fed[WITH] / sum(results[f"{NAMES[0]}, {name.split(', ')[1]}"].fed[WITH])
        rows.append([name, sum(one.prompts), *fed.values(), ratio, *seconds, *one.held.values(), *said])
    return table(head, rows)


def requests(results: dict[str, Result], asked: Asked) -> str:
    """The tokens fed with checkpoints and by the release, and the seconds to the first token with both."""
    rows = []
    for i, what in enumerate(asked):
        row: list[Any] = [what, next(iter(results.values())).prompts[i]]
        for one in results.values():
            pairs = [(number(values[WITH][i]), number(values[STOCK][i])) for values in (one.fed, one.seconds)]
            row += map(", ".join, pairs)
        rows.append(row)
    return table(["request", "prompt", *(f"{name}{unit}" for name in results for unit in ("", ", s"))], rows)


def costs(plan: Plan) -> Iterator[str]:
    """What checkpoints cost where nothing is cached, and where an entry of 32k tokens is copied."""
    last, rows = {"": session(plan)["a file has changed"]}, []
    for name in RECURRENT:
        with servers(name, plan) as made:
            pair = {way: made[way] for way in (WITH, WITHOUT)}
            (rounds,) = in_turns(pair, last, plan.repeats, "batch").values()
            copies = {way: [server.ask() for _ in range(plan.repeats)] for way, server in made.items()}
        seconds = {way: median(answers[way]["seconds"] for answers in rounds) for way in pair}
        ratio = median(answers[WITH]["seconds"] / answers[WITHOUT]["seconds"] for answers in rounds)
        rows.append([name, rounds[0][WITH]["fed"], *seconds.values(), ratio])
    yield table(["cold prompt", "tokens", *(f"seconds {way}" for way in pair), "ratio"], rows)
    keys = ("copy", "next", "next fed", "changed", "changed fed", "held")
    found = [[way, *(median(each[key] for each in every) for key in keys)] for way, every in copies.items()]
    head = ["32k tokens", "ms copy", "ms next turn", "fed", "ms changed near the end", "fed", "MiB held"]
    yield table(head, [[w, 1e3 * a, 1e3 * b, c, 1e3 * d, e, round(f / MIB)] for w, a, b, c, d, e, f in found])


def main() -> int:
    options = parser(__doc__)
    add = partial(options.add_argument, help="default: %(default)s")
    add("--models", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    add("--repeats", type=at_least_one, default=None)
    options.add_argument("--quick", action="store_true", help="a short session and tiny models, once each")
    options.add_argument("--costs", action="store_true", help="what checkpoints cost, not what they save")
    args = options.parse_args()
    plan = QUICK if args.quick else FULL
    plan = Plan(**vars(plan) | {"repeats": args.repeats or plan.repeats})
    if args.costs:
        print(*costs(plan), sep="\n\n")
        return 0
    results = dict(every(dict.fromkeys((NAMES[0], *args.models)), plan))
    print(totals(results), requests(results, session(plan)), sep="\n\n")
    return int(not all(one.equal for one in results.values()))


if __name__ == "__main__":
    sys.exit(main())
