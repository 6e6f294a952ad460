"""Time stock mlx-lm with a draft model, in its own environment: python peer_mlx.py JOB"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import generate_step, speculative_generate_step


class Counted:
    """A model that counts its forward passes and the tokens that it is fed."""

    def __init__(self, model: Any) -> None:
        self.model, self.layers = model, model.layers
        self.fed: list[int] = []

    def __call__(self, inputs: mx.array, **kwargs: Any) -> mx.array:
        self.fed.append(inputs.size)
        logits: mx.array = self.model(inputs, **kwargs)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def run(job: dict[str, Any], prompt: list[int], model: Any, draft: Any) -> dict[str, Any]:
    """Decode. The clock starts after the tokens of the first block, and only later tokens count."""
    counted = Counted(model)
    if draft is None:
        steps = generate_step(mx.array(prompt), counted, max_tokens=job["tokens"])
    else:
        steps = speculative_generate_step(mx.array(prompt), counted, draft, max_tokens=job["tokens"], **job["options"])
    tokens: list[int] = []
    start = end = 0.0
    before = first = 0
    for token, *_ in steps:
        end = time.perf_counter()
        if not tokens:
            before = len(counted.fed)
        if len(counted.fed) == before:
            start, first = end, first + 1
        tokens.append(token)
        if token in job["eos"]:
            break
    steps.close()
    fed = counted.fed[before:]
    counts = {"timed": len(tokens) - first, "forwards": len(fed), "fed": sum(fed)}
    return {"tokens": tokens, "seconds": end - start} | counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="what to decode, as conformance/bench/peers.py writes it")
    job = json.loads(parser.parse_args().job.read_text())
    model, draft = load(job["model"])[0], load(job["draft"])[0]
    versions = {name: version(name) for name in ("mlx-lm", "mlx")}
    for workload, prompt in job["prompts"].items():
        for warm in (None, draft):
            run(job, prompt, model, warm)
        plain, drafted = [run(job, prompt, model, None)], []
        for _ in range(job["repeats"]):
            drafted.append(run(job, prompt, model, draft))
            plain.append(run(job, prompt, model, None))
        row = {"workload": workload, "prompt_tokens": len(prompt), "versions": versions}
        print(json.dumps(row | {"plain": plain, "drafted": drafted}), flush=True)


if __name__ == "__main__":
    main()
