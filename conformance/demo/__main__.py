"""Decode a few prompts with and without prompt lookup, and compare text and speed.

python -m conformance.demo                                      # the model in this repository
python -m conformance.demo --model smollm2                      # the one of scripts/model.sh, with tasks of its own
python -m conformance.demo --model mlx-community/Qwen3-4B-4bit  # another model
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

import mlx_lm
from mlx_lm import stream_generate

from conformance import FIXTURE
from conformance.__main__ import load
from conformance.check.prompts import Unusable
from conformance.smollm2.tasks import TASKS
from conformance.testing.texts.prompts import PROMPTS
from conformance.testing.texts.workloads import Message

# The tasks that are shown: for the model in this repository, which is trained for such, and for others.
SHOWN = {name: PROMPTS[name] for name in ("rename", "json")}
REAL = {name: TASKS[name]() for name in ("rewrite", "quote", "fill_json", "answer")}


@dataclass
class Decoded:
    text: str
    tokens_per_second: float
    tokens_per_forward: float


def decode(model: object, tokenizer: object, prompt: list[int], max_tokens: int, lookup: int | None) -> Decoded:
    text = ""
    for response in stream_generate(model, tokenizer, prompt, max_tokens=max_tokens, prompt_lookup_num_tokens=lookup):
        text += response.text
    forwards = response.draft.forwards if lookup else response.generation_tokens
    return Decoded(text, response.generation_tps, response.generation_tokens / forwards)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=str(FIXTURE), help="a directory, a Hugging Face repo, or smollm2 after scripts/model.sh"
    )
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--prompt-lookup-num-tokens", type=int, default=8)
    args = parser.parse_args()
    if "prompt_lookup_num_tokens" not in signature(stream_generate).parameters:
        print(f"mlx-lm {mlx_lm.__version__} has no prompt lookup to show; scripts/apply.sh installs one that has")
        return 0
    try:
        model, tokenizer = load(args.model)
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"mlx-lm {mlx_lm.__version__}, model {args.model}\n")
    lookup, equal = args.prompt_lookup_num_tokens, True
    for name, messages in (SHOWN if Path(args.model).resolve() == FIXTURE.resolve() else REAL).items():
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        decode(model, tokenizer, prompt, 8, lookup)
        plain = decode(model, tokenizer, prompt, args.max_tokens, None)
        drafted = decode(model, tokenizer, prompt, args.max_tokens, lookup)
        equal = equal and plain.text == drafted.text
        show(name, messages, plain, drafted)
    return 0 if equal else 1


def show(name: str, messages: list[Message], plain: Decoded, drafted: Decoded) -> None:
    question = messages[-1]["content"].split("\n")[0]
    print(f"=== {name}: {question}")
    print(f"--- plain decoding, {plain.tokens_per_second:.0f} tokens a second\n{plain.text}")
    print(f"--- prompt lookup, {drafted.tokens_per_second:.0f} tokens a second\n{drafted.text}")
    verdict = "the same text" if plain.text == drafted.text else "ANOTHER TEXT"
    ratio = drafted.tokens_per_second / plain.tokens_per_second
    print(f"--- {verdict}, {ratio:.2f} times the speed, {drafted.tokens_per_forward:.1f} tokens a forward pass\n")


if __name__ == "__main__":
    sys.exit(main())
