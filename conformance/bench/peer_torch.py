"""Transformers' prompt lookup on PyTorch. Runs in an environment of its own: python peer_torch.py JOB"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM


def run(job: dict[str, Any], model: Any, prompt: list[int], options: dict[str, Any]) -> dict[str, Any]:
    """Decode; the clock starts when the prompt has been processed."""
    ends: list[float] = []
    fed: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        ends.append(time.perf_counter())
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
            **options,
        )
    end = time.perf_counter()
    hook.remove()
    tokens = text[0, len(prompt) :].tolist()
    return {"tokens": tokens, "seconds": end - ends[0], "forwards": len(fed) - 1, "fed": sum(fed[1:])}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype="auto").eval()
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    for workload, prompt in job["prompts"].items():
        for warm in ({}, job["options"]):
            run(job, model, prompt, warm)
        plain, drafted = [run(job, model, prompt, {})], []
        for _ in range(job["repeats"]):
            drafted.append(run(job, model, prompt, job["options"]))
            plain.append(run(job, model, prompt, {}))
        row = {"workload": workload, "prompt_tokens": len(prompt), "versions": versions}
        print(json.dumps(row | {"plain": plain, "drafted": drafted}), flush=True)


if __name__ == "__main__":
    main()
