"""Decode the same prompts over and over, as a load for a profiler.

py-spy record -o profile.svg -- python -m conformance.bench.workout drafted [--seconds 30]
py-spy record -o profile.svg --subprocesses -- python -m conformance.bench.workout server
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.draft import SuffixStrategy
from mlx_lm.generate import generate_step, speculative_generate_step

from conformance import FIXTURE
from conformance.testing.server.process import serve
from conformance.testing.texts.prompts import PROMPTS

NAMES = ("rename", "json", "quote", "nothing_to_copy")
TOKENS = 256


def decoder(drafted: bool) -> Callable[[str], int]:
    """A function that decodes a prompt by its name, and returns the number of tokens."""
    model, tokenizer = load(str(FIXTURE))

    def decode(name: str) -> int:
        prompt = mx.array(tokenizer.apply_chat_template(PROMPTS[name], add_generation_prompt=True))
        steps: Any = generate_step(prompt, model, max_tokens=TOKENS)
        if drafted:
            steps = speculative_generate_step(prompt, model, draft_strategy=SuffixStrategy(), max_tokens=TOKENS)
        n = 0
        for token, *_ in steps:
            n += 1
            if token in tokenizer.eos_token_ids:
                break
        steps.close()
        return n

    return decode


def repeat(decode: Callable[[str], int], seconds: float) -> int:
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        n += sum(decode(name) for name in NAMES)
    return n


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plain", "drafted", "server"])
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    if args.what == "server":
        with serve("--draft-type", "auto") as server:

            def ask(name: str) -> int:
                body = {"messages": PROMPTS[name], "max_tokens": TOKENS}
                n: int = server.post(body).json()["usage"]["completion_tokens"]
                return n

            n = repeat(ask, args.seconds)
    else:
        n = repeat(decoder(args.what == "drafted"), args.seconds)
    print(f"{args.what}: {n} tokens in about {args.seconds:.0f} seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
