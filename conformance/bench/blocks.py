"""What a longer block costs that recurrent or latent layers take token by token.

python -m conformance.bench.blocks

For blocks of 16, 32 and 64 tokens: the time of a pass with SHORT_BLOCK at 64, over that of the pass that prompts take
(SHORT_BLOCK at 1), both after the same prompt; the passes of one token that it takes as long as; and the most memory
that either pass holds beyond the model and its cache. Weights are random: the speed does not depend on them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from time import perf_counter
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from conformance.bench.models import fill
from conformance.testing.arguments import at_least_one, parser
from conformance.testing.models.architectures import CONFIGS, build, make_cache
from conformance.testing.tables import line, table

# A state space and latent attention; wide, so that the layers and not their calls are measured.
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 4096}
NAMES: dict[str, dict[str, Any]] = {
    "falcon_h1": WIDE,
    # Experts are not there on a CPU with bf16.
    "deepseek_v3": WIDE | {"first_k_dense_replace": 99},
}
PROMPT, LENGTHS = 100, (16, 32, 64)
HEAD = ("model", "tokens", "step by step, over at once", "in single tokens", "MiB held", "at once")


@contextmanager
def short_block(n: int) -> Iterator[None]:
    """Blocks of up to ``n`` tokens are taken the way single tokens are."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("mlx_lm.models.") and hasattr(module, "SHORT_BLOCK"):
                stack.enter_context(patch.object(module, "SHORT_BLOCK", n))
        yield


def one_pass(model: Any, cache: list[Any], length: int) -> tuple[float, int]:
    """The seconds of a block after a prompt, and the most bytes held beyond those before it."""
    cache, tokens = deepcopy(cache), mx.array([[i % 64 for i in range(length)]])
    mx.eval([c.state for c in cache])
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    start = perf_counter()
    mx.eval(model(tokens, cache=cache), [c.state for c in cache])
    return perf_counter() - start, mx.get_peak_memory() - held


def rows(name: str, repeats: int) -> Iterator[str]:
    with patch.dict(CONFIGS, {name: CONFIGS[name] | NAMES[name]}):
        model = build(name)
    model.set_dtype(mx.bfloat16)
    cache = make_cache(model)
    fill(model, list(range(64)) * (PROMPT // 64 + 1), cache)
    for length in LENGTHS:
        ratios, singles, held = [], [], (0, 0)
        # The first turn compiles.
        for _ in range(repeats + 1):
            one, _ = one_pass(model, cache, 1)
            with short_block(1):
                chunked, chunked_bytes = one_pass(model, cache, length)
            with short_block(max(LENGTHS)):
                stepped, stepped_bytes = one_pass(model, cache, length)
            ratios.append(stepped / chunked)
            singles.append(stepped / one)
            held = stepped_bytes, chunked_bytes
        times = sorted(ratios[1:])
        spread = f"{statistics.median(times):.2f} ({times[0]:.2f} to {times[-1]:.2f})"
        numbers = (statistics.median(singles[1:]), *(n / 2**20 for n in held))
        yield line([name, length, spread, *(f"{number:.1f}" for number in numbers)])


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--repeats", type=at_least_one, default=9, help="of which the median is shown (default: %(default)s)"
    )
    args = options.parse_args()
    print(table(HEAD))
    for name in NAMES:
        for row in rows(name, args.repeats):
            print(row, flush=True)


if __name__ == "__main__":
    main()
