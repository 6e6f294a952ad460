"""Decode a few prompts with and without prompt lookup, and compare text and speed.

python -m conformance.lab.demo                                      # the model in this repository
python -m conformance.lab.demo --model smollm2                      # the one of scripts/model.sh, with tasks of its own
python -m conformance.lab.demo --model mlx-community/Qwen3-4B-4bit  # another model
"""

from __future__ import annotations

import sys
from inspect import signature
from pathlib import Path
from typing import Any

import mlx_lm
from mlx_lm import stream_generate

from conformance import FIXTURE
from conformance.__main__ import load
from conformance.arguments import parser
from conformance.check.prompts import Unusable
from conformance.smollm2.tasks import TASKS
from conformance.subjects.prompts import PROMPTS

# The tasks that are shown: for the model in this repository, which is trained for such, and for others.
SHOWN = {name: PROMPTS[name] for name in ("rename", "json")}
REAL = {name: TASKS[name]() for name in ("rewrite", "quote", "fill_json", "answer")}
LOOKUP = 8


def decode(model: Any, tokenizer: Any, prompt: list[int], max_tokens: int, lookup: int | None) -> tuple[str, Any]:
    """The text, and the last response, which has the statistics."""
    found = list(stream_generate(model, tokenizer, prompt, max_tokens=max_tokens, prompt_lookup_num_tokens=lookup))
    return "".join(response.text for response in found), found[-1]


def main() -> int:
    options = parser(__doc__, "python -m conformance.lab.demo")
    options.add_argument(
        "--model", default=str(FIXTURE), help="a directory, a Hugging Face repo, or smollm2 after scripts/model.sh"
    )
    args = options.parse_args()
    if "draft" not in signature(stream_generate).parameters:
        print(f"mlx-lm {mlx_lm.__version__} has no prompt lookup to show; scripts/apply.sh installs one that has")
        return 0
    try:
        model, tokenizer = load(args.model)
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"mlx-lm {mlx_lm.__version__}, model {args.model}\n")
    equal = True
    for name, messages in (SHOWN if Path(args.model).resolve() == FIXTURE.resolve() else REAL).items():
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        decode(model, tokenizer, prompt, 8, LOOKUP)
        (text, plain), (other, drafted) = (decode(model, tokenizer, prompt, 400, n) for n in (None, LOOKUP))
        equal = equal and text == other
        question = messages[-1]["content"].split("\n")[0]
        print(f"=== {name}: {question}")
        print(f"--- plain decoding, {plain.generation_tps:.0f} tokens a second\n{text}")
        print(f"--- prompt lookup, {drafted.generation_tps:.0f} tokens a second\n{other}")
        verdict = "the same text" if text == other else "ANOTHER TEXT"
        ratio, each = drafted.generation_tps / plain.generation_tps, drafted.generation_tokens / drafted.draft.forwards
        print(f"--- {verdict}, {ratio:.2f} times the speed, {each:.1f} tokens a forward pass\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
