"""Time the prompt lookup of transformers on PyTorch, in its own environment: python peer_torch.py JOB"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class Puts(BaseStreamer):  # type: ignore[misc]
    """Records when tokens come, and how many."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def put(self, value: Any) -> None:
        self.seen.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        pass


def run(job: dict[str, Any], model: Any, prompt: list[int], options: dict[str, Any]) -> dict[str, Any]:
    """Decode. The clock starts after the tokens of the first block, and only later tokens count."""
    puts = Puts()
    fed: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        fed.append(kwargs["input_ids"].shape[1])

    hook = model.register_forward_hook(note, with_kwargs=True)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        text = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=job["tokens"],
            do_sample=False,
            pad_token_id=job["eos"][0],
            streamer=puts,
            **options,
        )
    hook.remove()
    tokens = text[0, len(prompt) :].tolist()
    # The streamer gets the prompt first, then the tokens of each block.
    (start, first), (end, _) = puts.seen[1], puts.seen[-1]
    counts = {"timed": len(tokens) - first, "forwards": len(fed) - 1, "fed": sum(fed[1:])}
    return {"tokens": tokens, "seconds": end - start} | counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path, help="what to decode, as conformance/bench/peers.py writes it")
    job: dict[str, Any] = json.loads(parser.parse_args().job.read_text())
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype="auto").eval()
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    for workload, prompt in job["prompts"].items():
        # The first run of each kind does not count.
        run(job, model, prompt, {})
        run(job, model, prompt, job["options"])
        plain, drafted = [run(job, model, prompt, {})], []
        for _ in range(job["repeats"]):
            drafted.append(run(job, model, prompt, job["options"]))
            plain.append(run(job, model, prompt, {}))
        row = {"workload": workload, "prompt_tokens": len(prompt), "versions": versions}
        print(json.dumps(row | {"plain": plain, "drafted": drafted}), flush=True)


if __name__ == "__main__":
    main()
