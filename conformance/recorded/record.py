"""Let SmolLM2 answer the prompts, greedily and several at a time."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from conformance.recorded.answers import ANSWERS, KEPT, Answer, write
from conformance.recorded.blas import load_fast
from conformance.recorded.prompts import Prompt, prompts
from conformance.recorded.sources import FOLDER
from conformance.smollm2 import path_of

# Requests that decode together, and the longest answer.
ROWS, TOKENS = 16, 96
# What was answered so far, so that a run that was ended goes on from there.
PROGRESS = FOLDER / "answers.jsonl"


def likeliest(logits: np.ndarray) -> tuple[list[int], list[int]]:
    """The likeliest tokens of a step, the likeliest first, and their log probabilities in thousandths."""
    best = np.argpartition(-logits, KEPT)[:KEPT]
    best = best[np.lexsort((best, -logits[best]))]
    most = logits[best[0]]
    total = most + np.log(np.exp(logits - most).sum())
    return best.tolist(), np.rint(1000 * (logits[best] - total)).astype(int).tolist()


def answered(model: Any, eos: set[int], asked: Sequence[Prompt], ids: Sequence[list[int]]) -> list[Answer]:
    """The greedy answers of some prompts, which are read alone and decode together."""
    caches = []
    for prompt in ids:
        caches.append(make_prompt_cache(model))
        # Without the output layer, which is needed for the last token only.
        mx.eval(model.model(mx.array([prompt[:-1]]), cache=caches[-1]))
    cache = [BatchKVCache.merge(list(layer)) for layer in zip(*caches, strict=True)]
    found = [Answer(one.kind, one.source, prompt, [], [], []) for one, prompt in zip(asked, ids, strict=True)]
    rows, tokens = list(range(len(ids))), [prompt[-1] for prompt in ids]
    for _ in range(TOKENS):
        logits = np.array(model(mx.array(tokens)[:, None], cache=cache)[:, -1])
        for row, one in zip(rows, logits, strict=True):
            best, logprobs = likeliest(one)
            found[row].answer.append(best[0])
            found[row].likeliest.append(best)
            found[row].logprobs.append(logprobs)
        keep = [i for i, row in enumerate(rows) if found[row].answer[-1] not in eos]
        if not keep:
            break
        if len(keep) < len(rows):
            rows = [rows[i] for i in keep]
            for layer in cache:
                layer.filter(mx.array(keep))
        tokens = [found[row].answer[-1] for row in rows]
    return found


def about() -> dict[str, Any]:
    versions = {name: version(name) for name in ("mlx", "mlx-lm", "numpy")}
    return {"model": "SmolLM2-135M-Instruct in float32", "python": platform.python_version(), **versions}


def record(progress: Path = PROGRESS) -> None:
    """Answer what is not answered yet, and write the file when all is."""
    model, tokenizer = load_fast(path_of("smollm2"))

    def encode(messages: Any) -> list[int]:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    asked = prompts(lambda messages: len(encode(messages)))
    done = progress.read_text().splitlines() if progress.exists() else []
    with progress.open("a") as file:
        for start in range(len(done), len(asked), ROWS):
            some = asked[start : start + ROWS]
            answers = answered(model, set(tokenizer.eos_token_ids), some, [encode(one.messages) for one in some])
            done += [json.dumps(asdict(answer)) for answer in answers]
            file.writelines(f"{line}\n" for line in done[-len(some) :])
            file.flush()
            print(f"answered {len(done)} of {len(asked)}", flush=True)
    write(ANSWERS, about(), [Answer(**json.loads(line)) for line in done])
    progress.unlink()
