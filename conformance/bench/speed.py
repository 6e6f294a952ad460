"""Compare drafted with plain decoding: on a model that is as slow as a larger one, or on a real one with real text.

python -m conformance.bench.speed [--repeats 5] [--strategies edit suffix ngram-simple ngram-mod]
python -m conformance.bench.speed --model smollm2 --strategies edit --temperature 0.8

The model is the fixture with a wider MLP. The new neurons are multiplied by zero, so it computes the same results at
the cost of a model of 24 million parameters. Plain and drafted decodes of a prompt take turns. A speed is the median of
the ratios. An answer that runs into a loop is marked: a loop flatters every drafter.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.draft import DraftOptions, DraftStats
from mlx_lm.draft.model import block_costs
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from conformance import FIXTURE
from conformance.smollm2 import MODELS, path_of
from conformance.smollm2.tasks import TASKS
from conformance.testing.texts.loops import loops
from conformance.testing.texts.prompts import PROMPTS
from conformance.testing.texts.workloads import Message, ambiguous_text, chat, fenced

HIDDEN = 15_360
TOKENS, SEED = 256, 7


def widened(hidden: int = HIDDEN, dtype: mx.Dtype = mx.bfloat16) -> tuple[Any, Any]:
    """The fixture with ``hidden`` neurons in each MLP, and its tokenizer."""
    model, tokenizer = load(str(FIXTURE))
    key = mx.random.key(0)
    for layer in model.model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            linear = getattr(layer.mlp, name)
            axis = 1 if name == "down_proj" else 0
            shape = list(linear.weight.shape)
            shape[axis] = hidden - shape[axis]
            # The new neurons are computed, then multiplied by zero.
            more = mx.zeros(shape) if axis else 0.02 * mx.random.normal(shape, key=key)
            linear.weight = mx.concatenate([linear.weight, more.astype(linear.weight.dtype)], axis)
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model, tokenizer


def ambiguous(seed: int) -> list[Message]:
    return chat(f"Write prose.\n{fenced(ambiguous_text(random.Random(seed))(60))}")


def prompts() -> dict[str, list[Message]]:
    return PROMPTS | {f"ambiguous {seed}": ambiguous(seed) for seed in range(2)}


@dataclass
class Decode:
    tokens: list[int]
    seconds: float
    stats: DraftStats | None = None


Cache = list[Any]


def prefilled(model: Any, prompt: list[int]) -> Cache:
    """A cache of all but the last two tokens of a prompt."""
    cache: Cache = make_prompt_cache(model)
    list(generate_step(mx.array(prompt[:-2]), model, max_tokens=0, prompt_cache=cache))
    return cache


def decode(
    model: Any,
    prompt: list[int],
    eos: set[int],
    strategy: str | None,
    n: int,
    temperature: float = 0.0,
    cache: Cache | None = None,
) -> Decode:
    """Decode up to the end token or a limit. The clock starts at the first token.

    A cache of the prompt is copied, and the strategy is shown what it holds.
    """
    stats, held = DraftStats(), 0 if cache is None else len(prompt) - 2
    options = {
        "max_tokens": n,
        "sampler": make_sampler(temperature),
        "prompt_cache": make_prompt_cache(model) if cache is None else deepcopy(cache),
    }
    mx.random.seed(SEED)
    if strategy is None:
        steps = generate_step(mx.array(prompt[held:]), model, **options)
    else:
        drafter = DraftOptions(strategy).make_strategy(model)
        drafter.observe(prompt[:held])
        options |= {"draft_strategy": drafter, "eos_token_ids": eos, "stats": stats}
        steps = speculative_generate_step(mx.array(prompt[held:]), model, **options)
    tokens: list[int] = []
    start = time.perf_counter()
    for token, *_ in steps:
        if not tokens:
            start = time.perf_counter()
        tokens.append(token)
        if token in eos:
            break
    seconds = time.perf_counter() - start
    steps.close()
    return Decode(tokens, seconds, None if strategy is None else stats)


def compare(model: Any, prompt: list[int], eos: set[int], strategy: str, args: argparse.Namespace) -> str:
    cache, n, temperature = prefilled(model, prompt), args.tokens, args.temperature
    order = [(None, strategy)] * args.repeats
    runs = [[decode(model, prompt, eos, s, n, temperature, cache) for s in pair] for pair in order]
    plain, drafted = zip(*runs, strict=True)
    stats = drafted[0].stats
    if any(run.tokens != plain[0].tokens for run in (*plain, *drafted)):
        return "other tokens"
    n_tokens = len(plain[0].tokens)
    ratios = [a.seconds / b.seconds for a, b in runs]
    median = statistics.median(ratios)
    speed = (n_tokens - 1) / statistics.median(run.seconds for run in plain)
    fed = (stats.drafted + stats.cycles) / n_tokens
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    length = f"{n_tokens}{' (a loop)' * loops(plain[0].tokens)}"
    return f"{median:.2f} | {spread} | {speed:.1f} | {length} | {n_tokens / stats.forwards:.2f} | {fed:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="decodes of each kind, in turns (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=TOKENS, help="the longest answer, in tokens (default: %(default)s)"
    )
    parser.add_argument("--strategies", nargs="+", default=["edit", "suffix", "ngram-simple", "ngram-mod"])
    parser.add_argument("--model", choices=list(MODELS), help="a model of scripts/model.sh, with tasks of its own")
    parser.add_argument("--temperature", type=float, default=0.0, help="sample, with a seed (default: %(default)s)")
    parser.add_argument("--prompts", nargs="+", help="some of the prompts, by name")
    args = parser.parse_args()
    model, tokenizer = load(path_of(args.model)) if args.model else widened()
    known = {name: make() for name, make in TASKS.items()} if args.model else prompts()
    print(f"{args.model or f'bf16, {HIDDEN} neurons a layer'}\n")
    print("| prompt | strategy | speed | spread | plain tokens a second | tokens | tokens a forward | fed a token |")
    print("| --- " * 8 + "|")
    for name in args.prompts or known:
        prompt = tokenizer.apply_chat_template(known[name], add_generation_prompt=True)
        for strategy in args.strategies:
            eos = set(tokenizer.eos_token_ids)
            row = compare(model, prompt, eos, strategy, args)
            print(f"| {name} | {strategy} | {row} |", flush=True)
    costs = block_costs(model)
    print(f"\ncosts of blocks, as they were learned: { {n: round(costs(n), 2) for n in costs.table.lengths} }")
    return 0


if __name__ == "__main__":
    sys.exit(main())
