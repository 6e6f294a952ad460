"""Measure what a report needs: the verdict of ``check``, the blocks of ``probe``, batches, and six short workloads."""

from __future__ import annotations

import argparse
import contextlib
import io
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from conformance.bench.speed import decode
from conformance.check import check, probe
from conformance.check.prompts import built_in, encode
from conformance.report.files import FORMAT
from conformance.testing.device import device
from conformance.testing.texts.prompts import PROMPTS

# Edits, records, a quotation, a copy, and one text that repeats nothing. Small models repeat themselves even there,
# unless they are sampled so hot that they say any token.
WORKLOADS = ("rename", "delete", "lookup", "quote", "echo", "nothing_to_copy")
TEMPERATURES = {"nothing_to_copy": 3.0}
# The first round of each workload compiles, and does not count.
ROUNDS, TOKENS = 3, 96
BATCHES, LENGTHS, CONTEXT, REPEATS = (1, 2, 4, 8), (1, 2, 4, 8, 16), 256, 5
Say = Callable[[str], None]


def about(name: str, model: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Describe the model and the machine, without a path and without a name of the owner."""
    weights = [weight for _, weight in tree_flatten(model.parameters())]
    chip, kind, system = device().rsplit(", ", 2)
    return {
        "model": Path(name).name if Path(name).is_dir() else name,
        "type": str(config.get("model_type", "unknown")),
        "bits": int((config.get("quantization") or {}).get("bits", 0)),
        "dtype": str(max(weights, key=lambda weight: weight.nbytes).dtype).removeprefix("mlx.core."),
        "weights_gb": round(sum(weight.nbytes for weight in weights) / 1e9, 3),
        "chip": chip,
        "device": kind,
        "system": system,
        "mlx": version("mlx"),
        "mlx-lm": mlx_lm.__version__,
        "python": platform.python_version(),
        "made": date.today().isoformat(),
    }


def checked(model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """The verdict of ``check`` on its short prompts."""
    prompts = {name: messages for name, messages in built_in().items() if name.endswith("short")}
    args = argparse.Namespace(
        prompts=prompts, max_tokens=64, draft_type="auto", num_draft_tokens="auto", draft_margin=0.0, ungated=False
    )
    with contextlib.redirect_stdout(io.StringIO()):
        found = check.main(args, model, tokenizer, say)
    kept = ("name", "verdict", "equal", "pairs", "tokens_a_forward", "strategy")
    return {"exit": found["exit"], "prompts": [{name: one[name] for name in kept} for one in found["prompts"]]}


def probed(model: Any, tokenizer: Any, say: Say) -> dict[str, Any]:
    """The noise and the costs of blocks, as in ``probe --quick``."""
    with contextlib.redirect_stdout(io.StringIO()):
        found = probe.main(argparse.Namespace(quick=True), model, tokenizer, say)
    kept = ("length", "noise", "changed", "cost")
    return {"rows": [{name: row[name] for name in kept} for row in found["rows"]], **found["recommended"]}


def batched(model: Any, tokenizer: Any, say: Say) -> list[dict[str, Any]]:
    """The cost of forward passes by rows and tokens in each row, in passes of one token of one row."""
    tokens = probe.tokens_of(tokenizer)
    medians: dict[tuple[int, int], float] = {}
    for rows in BATCHES:
        say(f"{rows} rows")
        cache = make_prompt_cache(model)
        mx.eval(model(mx.array([tokens[:CONTEXT]] * rows), cache=cache))
        for length in LENGTHS:
            block, seconds = mx.array([tokens[:length]] * rows), []
            for _ in range(REPEATS + 1):
                tic = time.perf_counter()
                mx.eval(model(block, cache=cache))
                seconds.append(time.perf_counter() - tic)
            medians[rows, length] = statistics.median(seconds[1:])
    one = medians[1, 1]
    return [{"rows": rows, "length": length, "cost": t / one} for (rows, length), t in medians.items()]


def timed(model: Any, tokenizer: Any, name: str) -> dict[str, Any]:
    """Time one workload. Plain decoding and the default drafter take turns."""
    prompt, eos = list(encode(tokenizer, PROMPTS[name])), set(tokenizer.eos_token_ids)
    hot = TEMPERATURES.get(name, 0.0)
    runs = [[decode(model, prompt, eos, kind, TOKENS, hot) for kind in (None, "auto")] for _ in range(ROUNDS)]
    plain, drafted = zip(*runs[1:], strict=True)
    n_tokens, stats = len(plain[0].tokens), drafted[-1].stats
    assert stats is not None
    ratios = [a.seconds / b.seconds for a, b in zip(plain, drafted, strict=True) if b.seconds > 0]
    seconds = statistics.median(run.seconds for run in plain)
    return {
        "workload": name,
        "tokens": n_tokens,
        "same": all(run.tokens == runs[0][0].tokens for pair in runs for run in pair),
        # An answer of one token has no time after its first token.
        "plain_tps": (n_tokens - 1) / seconds if n_tokens > 1 else 0.0,
        "speed": statistics.median(ratios) if n_tokens > 1 else 1.0,
        "tokens_a_forward": n_tokens / max(stats.forwards, 1),
        "strategy": stats.strategy,
    }


def measured(name: str, model: Any, tokenizer: Any, config: dict[str, Any], minutes: float, say: Say) -> dict[str, Any]:
    """A whole report. It lists the parts that were left out for lack of time."""
    deadline = time.monotonic() + 60 * minutes
    report: dict[str, Any] = {"format": FORMAT, "about": about(name, model, config)}
    left_out: list[str] = []
    for stage, found in stages(model, tokenizer, say):
        if time.monotonic() > deadline:
            left_out.append(stage)
            continue
        say(stage)
        try:
            value = found()
        except Exception as error:
            # A model that fails in one part may manage the others.
            left_out.append(f"{stage} ({type(error).__name__}: {str(error)[:80]})")
            continue
        if stage in WORKLOADS:
            report.setdefault("speeds", []).append(value)
        else:
            report[stage] = value
    return {"speeds": [], "check": None, "probe": None, "batch": [], **report, "left_out": left_out}


def stages(model: Any, tokenizer: Any, say: Say) -> Iterator[tuple[str, Callable[[], Any]]]:
    for name in WORKLOADS:
        yield name, partial(timed, model, tokenizer, name)
    yield "probe", partial(probed, model, tokenizer, say)
    yield "batch", partial(batched, model, tokenizer, say)
    yield "check", partial(checked, model, tokenizer, say)
