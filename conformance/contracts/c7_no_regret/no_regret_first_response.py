"""Record the blocks of the first drafted response of a process, for test_no_regret.py:

python -m conformance.contracts.c7_no_regret.no_regret_first_response [--fault calibrate]

It decodes a prompt once plain and twice drafted, and prints a line of JSON for each response.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm import load, stream_generate
from mlx_lm.draft import costs
from mlx_lm.models.cache import make_prompt_cache

from conformance import FIXTURE
from conformance.testing.texts.prompts import PROMPTS

GENERATE = sys.modules["mlx_lm.generate"]
TOKENS = 48


@dataclass
class Response:
    """The length of each block of a response, and the number of blocks before the first token."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    before_the_first: int = 0
    forwards: int = 0
    accepted: int = 0


def respond(model: Any, tokenizer: Any, prompt: list[int], **drafting: Any) -> Response:
    made, kind = Response(), type(model)
    call = kind.__call__

    def counted(self: Any, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
        made.blocks.append(inputs.size)
        return call(self, inputs, *args, **kwargs)

    with patch.object(kind, "__call__", counted):
        for response in stream_generate(model, tokenizer, prompt, max_tokens=TOKENS, **drafting):
            made.before_the_first = made.before_the_first or len(made.blocks)
            made.tokens.append(response.token)
    if response.draft is not None:
        made.forwards, made.accepted = response.draft.forwards, response.draft.accepted
    return made


def calibrate() -> None:
    """A fault: the first response measures the costs of blocks."""
    learned = GENERATE.block_costs

    def measured(model: Any, *kv_bits: Any) -> Any:
        if not hasattr(model, "_block_costs"):
            for n_tokens in (1, 2, 4, 8, 16):
                mx.eval(model(mx.zeros((1, n_tokens), mx.uint32), cache=make_prompt_cache(model)))
        return learned(model, *kv_bits)

    GENERATE.block_costs = measured  # type: ignore[attr-defined]


def read_ahead() -> None:
    """A fault: another forward pass before the first token."""
    steps = GENERATE.draft_generate_step

    def late(prompt: mx.array, verifier: Any, *args: Any, **kwargs: Any) -> Any:
        verifier.model(prompt[None, -1:], cache=make_prompt_cache(verifier.model))
        return steps(prompt, verifier, *args, **kwargs)

    GENERATE.draft_generate_step = late  # type: ignore[attr-defined]


FAULTS = {"calibrate": calibrate, "read ahead": read_ahead}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=FAULTS, help="a fault to plant")
    args = parser.parse_args()
    if args.fault is not None:
        FAULTS[args.fault]()
    # With a stopped clock no costs are learned, so the second response drafts as the first one.
    costs.time = SimpleNamespace(perf_counter=lambda: 0.0)
    model, tokenizer = load(str(FIXTURE))
    prompt = tokenizer.apply_chat_template(PROMPTS["rename"], add_generation_prompt=True)
    for drafting in ({}, {"draft_type": "auto"}, {"draft_type": "auto"}):
        print(json.dumps(asdict(respond(model, tokenizer, prompt, **drafting))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
