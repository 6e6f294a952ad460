"""What prefixes save in the session of an agent: tokens fed, seconds to the first token, bytes held.

python -m conformance.lab.bench.prefixes [--models llama qwen3_next] [--entries 10]
python -m conformance.lab.bench.prefixes --quick     # a short session, once

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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from mlx_lm.utils import save_config, save_model
from tokenizers import Tokenizer

from conformance import FIXTURE, ROOT
from conformance.arguments import at_least_one, parser
from conformance.series.patches import commits, unpack
from conformance.subjects.architectures import CONFIGS, build
from conformance.subjects.prompts import Message
from conformance.tables import number, table

OPTIONS: dict[str, list[str]] = {
    "with": ["--prompt-cache-checkpoints", "8"],
    "without": ["--prompt-cache-checkpoints", "0"],
    "release": [],
}
WITH, WITHOUT, STOCK = OPTIONS
DOORS = {"batch": None, "alone": 0}
HIDDEN, LAYERS = 128, 4
# What differs from the tiny models of all architectures, and of each.
SIZE = {"vocab_size": 1026, "eos_token_id": 0, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
SIZE |= {"intermediate_size": 3 * HIDDEN, "max_position_embeddings": 65536}
OWN: dict[str, dict[str, Any]] = {
    "llama": {"layer_types": None, "sliding_window": None},
    "gemma3_text": {"sliding_window": 256},
    "qwen3_next": {"full_attention_interval": LAYERS, "mlp_only_layers": list(range(LAYERS))},
    # Heads of 16.
    "mamba2": {"num_heads": HIDDEN // 8},
    "lfm2": {"block_dim": HIDDEN, "layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
}
# The tables compare with the first one, whose cache can be trimmed to any length.
NAMES = tuple(OWN)
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


@dataclass(frozen=True)
class Plan:
    turns: int = 10
    # In words; a word is two or three tokens of the fixture.
    text: int = 40
    repeats: int = 5
    # The prompts that a server may cache.
    entries: int = 10


QUICK = Plan(turns=4, text=10, repeats=1)


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


def tokenizer() -> Tokenizer:
    made = Tokenizer.from_file(str(FIXTURE / "tokenizer.json"))
    made.add_tokens(THINKING)
    return made


def save(name: str, folder: Path) -> None:
    """Write a model with random weights, and the tokenizer of the fixture with tokens for thinking."""
    config = CONFIGS[name] | SIZE | OWN[name] | {"model_type": name}
    with patch.dict(CONFIGS, {name: config}):
        save_model(folder, build(name))
    save_config(config, folder / "config.json")
    shutil.copy(FIXTURE / "tokenizer_config.json", folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@contextmanager
def servers(name: str, entries: int) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A server for each way, in its own process, with the same model."""
    with ExitStack() as stack:
        folder, release = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        unpack(commits()[0], release)
        save(name, folder)
        made = {}
        for way, options in OPTIONS.items():
            path = [str(release)] * (way == STOCK) + [str(ROOT), os.environ.get("PYTHONPATH", "")]
            env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "HF_HUB_OFFLINE": "1"}
            command = [sys.executable, "-m", "conformance.lab.bench.prefix_server", "--model", str(folder)]
            command += ["--log-level", "ERROR", "--prompt-cache-size", str(entries), *options]
            # Its input ends first, then it is waited for.
            made[way] = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
            )
        yield made


def asked(process: Any, **request: Any) -> dict[str, Any]:
    print(json.dumps(request), file=process.stdin, flush=True)
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


@dataclass
class Result:
    """What one model did with each request, by the way of its server."""

    prompts: list[int]
    fed: dict[str, list[int]]
    # Of all requests, and at the end.
    seconds: dict[str, float]
    held: dict[str, float]


def measured(made: dict[str, subprocess.Popen[str]], plan: Plan, seed: int | None) -> Result:
    """Ask all servers the whole session, one request after the other. Another one comes first each time."""
    asked_for, encode = session(plan), tokenizer().encode
    found: defaultdict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for repeat in range(plan.repeats):
        ways = [*made][repeat % len(made) :] + [*made][: repeat % len(made)]
        for i, (messages, said) in enumerate(asked_for):
            text = f"{said['reasoning_content']}\n</think>\n{said['content']}<|end|>"
            tokens = encode(text, add_special_tokens=False).ids
            for way in ways:
                answer = asked(made[way], messages=messages, tokens=tokens, seed=seed, forget=i == 0)
                found[way, i].append(answer)
    requests = range(len(asked_for))
    return Result(
        [found[WITH, i][0]["prompt"] for i in requests],
        {way: [found[way, i][0]["fed"] for i in requests] for way in OPTIONS},
        {way: sum(median(each["seconds"] for each in found[way, i]) for i in requests) for way in OPTIONS},
        {way: found[way, requests[-1]][-1]["held"] / 2**20 for way in OPTIONS},
    )


Results = dict[tuple[str, str], Result]


def every(names: list[str], plan: Plan) -> Results:
    results = Results()
    for name in dict.fromkeys((NAMES[0], *names)):
        with servers(name, plan.entries) as made:
            results |= {(name, door): measured(made, plan, seed) for door, seed in DOORS.items()}
    return results


def ratio(results: Results, name: str, door: str) -> float:
    """The tokens fed with checkpoints, for each one that a model feeds whose cache can be trimmed to any length."""
    return sum(results[name, door].fed[WITH]) / sum(results[NAMES[0], door].fed[WITH])


def totals(results: Results) -> str:
    """The whole session: tokens fed, seconds to the first tokens, MiB at its end."""
    three, rows = ", ".join(OPTIONS), []
    for (name, door), one in results.items():
        each = map(sum, one.fed.values()), one.seconds.values(), one.held.values()
        fed, *cells = (" / ".join(map(number, values)) for values in each)
        rows.append([name, door, sum(one.prompts), fed, ratio(results, name, door), *cells])
    return table(["model", "asked", "prompts", f"fed {three}", "llama = 1", f"seconds {three}", f"MiB {three}"], rows)


def main() -> None:
    options = parser(__doc__)
    add = options.add_argument
    add("--models", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    add("--entries", type=at_least_one, default=Plan.entries, help="prompts that are cached (default: %(default)s)")
    add("--quick", action="store_true", help="a short session, once")
    args = options.parse_args()
    plan = replace(QUICK if args.quick else Plan(), entries=args.entries)
    print(totals(every(args.models, plan)))


if __name__ == "__main__":
    main()
