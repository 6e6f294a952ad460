"""What prefixes save in the session of an agent: tokens fed, seconds to the first token, bytes held; and whether the
answers are those of a server that has cached nothing.

python -m conformance.lab.bench.prefixes [--models llama qwen3_next] [--entries 10]
python -m conformance.lab.bench.prefixes --quick     # a short session and tiny models, once each

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
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from conformance import FIXTURE, ROOT
from conformance.arguments import at_least_one, parser
from conformance.series.patches import commits, unpack
from conformance.subjects.architectures import CONFIGS, build
from conformance.subjects.prompts import Message
from conformance.tables import number, table

WITH, WITHOUT, STOCK = "with", "without", "release"
OPTIONS: dict[str, list[str]] = {
    WITH: ["--prompt-cache-checkpoints", "8"],
    WITHOUT: ["--prompt-cache-checkpoints", "0"],
    STOCK: [],
}
DOORS = {"batch": None, "alone": 0}
# The tables compare with the first one, whose cache can be trimmed to any length.
NAMES = ("llama", "gemma3_text", "qwen3_next", "mamba2", "lfm2")
THINKING = ["<think>", "</think>"]
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
# What a server answered to a request, each time, by its way and the number of the request.
Answers = defaultdict[tuple[str, int], list[dict[str, Any]]]


@dataclass(frozen=True)
class Plan:
    hidden: int = 128
    layers: int = 4
    window: int = 256
    turns: int = 10
    # In words; a word is two or three tokens of the fixture.
    text: int = 40
    repeats: int = 5
    # The prompts that a server may cache.
    entries: int = 10


QUICK = Plan(hidden=64, layers=2, window=64, turns=4, text=10, repeats=1)


def session(plan: Plan) -> list[tuple[list[Message], Message]]:
    """The messages of each request, and its answer: the same every time."""
    rng = random.Random("session 1")

    def text(words: float) -> str:
        return " ".join(rng.choices(WORDS, k=int(words)))

    def message(role: str, words: float) -> Message:
        return {"role": role, "content": text(words)}

    def answer() -> Message:
        return message("assistant", plan.text / 8) | {"reasoning_content": text(plan.text / 8)}

    tools = [{"name": f"tool_{i}", "description": text(plan.text / 2)} for i in range(4)]
    system: Message = {"role": "system", "content": f"{text(plan.text)}\n{json.dumps(tools)}"}
    history, found = [system], []
    for turn in range(plan.turns):
        role, said = "tool" if turn % 3 else "user", answer()
        history.append(message(role, plan.text))
        found.append(([*history], said))
        history.append(said)
    # The file that a call in the middle returned has changed.
    place = 1 + 2 * (plan.turns // 2)
    old = history[place]["content"].split()
    old[len(old) // 2 : len(old) // 2 + 5] = text(5).split()
    history[place] = history[place] | {"content": " ".join(old)}
    history.append(message("user", plan.text))
    again = history, answer()
    return [*found, again, again, ([system, message("user", plan.text)], answer())]


def sizes(name: str, plan: Plan) -> dict[str, Any]:
    """What differs from the tiny model of an architecture."""
    size = {"vocab_size": 1026, "eos_token_id": 0, "hidden_size": plan.hidden, "num_hidden_layers": plan.layers}
    size |= {"intermediate_size": 3 * plan.hidden, "max_position_embeddings": 65536}
    own: dict[str, dict[str, Any]] = {
        "llama": {"layer_types": None, "sliding_window": None},
        "gemma3_text": {"sliding_window": plan.window},
        "qwen3_next": {"full_attention_interval": plan.layers, "mlp_only_layers": list(range(plan.layers))},
        # Heads of 16.
        "mamba2": {"num_heads": plan.hidden // 8},
        "lfm2": {"block_dim": plan.hidden, "layer_types": ["conv", "full_attention"] * (plan.layers // 2)},
    }
    return CONFIGS[name] | size | own[name] | {"model_type": name}


def tokenizer() -> Tokenizer:
    made = Tokenizer.from_file(str(FIXTURE / "tokenizer.json"))
    made.add_tokens(THINKING)
    return made


def save(name: str, plan: Plan, folder: Path) -> Path:
    """Write a model with random weights, and the tokenizer of the fixture with tokens for thinking."""
    config = sizes(name, plan)
    with patch.dict(CONFIGS, {name: config}):
        weights = dict(tree_flatten(build(name).parameters()))
    shutil.copy(FIXTURE / "tokenizer_config.json", folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    return folder


@contextmanager
def servers(name: str, plan: Plan) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A server for each way, in its own process, with the same model."""
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
            made[way] = stack.enter_context(process)
        yield made


def asked(process: subprocess.Popen[str], **request: Any) -> dict[str, Any]:
    assert process.stdin
    assert process.stdout
    print(json.dumps(request), file=process.stdin, flush=True)
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def in_turns(made: dict[str, subprocess.Popen[str]], plan: Plan, door: str, forget: bool = False) -> Answers:
    """Ask all servers the whole session, one request after the other. Another one comes first each time."""
    encode, found = tokenizer().encode, Answers(list)
    for repeat in range(plan.repeats):
        ways = [*made][repeat % len(made) :] + [*made][: repeat % len(made)]
        for i, (messages, said) in enumerate(session(plan)):
            text = f"{said['reasoning_content']}\n</think>\n{said['content']}<|end|>"
            ask = {"messages": messages, "tokens": encode(text, add_special_tokens=False).ids, "seed": DOORS[door]}
            for way in ways:
                found[way, i].append(asked(made[way], **ask, forget=forget or not i))
    return found


@dataclass
class Result:
    """What one model did, by the way of its server. The lists have an entry for each request."""

    fed: dict[str, list[int]]
    seconds: dict[str, float]
    held: dict[str, float]
    prompts: list[int]
    equal: bool
    distance: float


def measured(made: dict[str, subprocess.Popen[str]], plan: Plan, door: str) -> Result:
    requests = range(len(session(plan)))
    cold = in_turns({STOCK: made[STOCK]}, replace(plan, repeats=1), door, forget=True)
    found = in_turns(made, plan, door)
    pairs = [(cold[STOCK, i][0], answer) for i in requests for answer in found[WITH, i]]
    logprobs = [(a, b) for x, y in pairs for a, b in zip(x["logprobs"], y["logprobs"], strict=True)]
    return Result(
        {way: [found[way, i][0]["fed"] for i in requests] for way in OPTIONS},
        {way: sum(median(each["seconds"] for each in found[way, i]) for i in requests) for way in OPTIONS},
        {way: found[way, requests[-1]][-1]["held"] / 2**20 for way in OPTIONS},
        [cold[STOCK, i][0]["prompt"] for i in requests],
        all(x["greedy"] == y["greedy"] for x, y in pairs),
        max(abs(a - b) for a, b in logprobs),
    )


Results = dict[tuple[str, str], Result]


def every(names: Iterable[str], plan: Plan) -> Results:
    results = Results()
    for name in names:
        with servers(name, plan) as made:
            results |= {(name, door): measured(made, plan, door) for door in DOORS}
    return results


def ratio(results: Results, name: str, door: str) -> float:
    """The tokens fed with checkpoints, for each one that a model feeds whose cache can be trimmed to any length."""
    return sum(results[name, door].fed[WITH]) / sum(results[NAMES[0], door].fed[WITH])


def totals(results: Results) -> str:
    """The whole session: tokens fed, seconds to the first tokens, MiB at its end, and how far the answers are."""
    three = ", ".join(OPTIONS)
    head = ["model", "asked", "prompts", f"fed {three}", "llama = 1", f"seconds {three}", f"MiB {three}", "answers"]
    rows = []
    for (name, door), one in results.items():
        each = map(sum, one.fed.values()), one.seconds.values(), one.held.values()
        fed, *cells = (" / ".join(map(number, values)) for values in each)
        said = ["equal" if one.equal else "differ", f"{one.distance:.0e}"]
        rows.append([name, door, sum(one.prompts), fed, ratio(results, name, door), *cells, *said])
    return table([*head, "log probs apart"], rows)


def main() -> int:
    options = parser(__doc__)
    add = options.add_argument
    add("--models", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    add("--entries", type=at_least_one, default=Plan.entries, help="prompts that are cached (default: %(default)s)")
    add("--quick", action="store_true", help="a short session and tiny models, once each")
    args = options.parse_args()
    plan = replace(QUICK if args.quick else Plan(), entries=args.entries)
    results = every(dict.fromkeys((NAMES[0], *args.models)), plan)
    print(totals(results))
    return int(not all(one.equal for one in results.values()))


if __name__ == "__main__":
    sys.exit(main())
