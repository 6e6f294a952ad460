"""Let SmolLM2 answer the prompts, greedily or sampled, several at a time."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache
from mlx_lm.sample_utils import make_sampler

from conformance.lab.recorded.answers import ANSWERS, KEPT, SAMPLED, Answer, write
from conformance.lab.recorded.blas import load_fast
from conformance.lab.recorded.prompts import Prompt, prompts
from conformance.lab.recorded.sources import FOLDER
from conformance.smollm2 import path_of

# Requests that decode together, and the longest answer.
ROWS, TOKENS = 16, 96


@dataclass(frozen=True)
class Way:
    """How the answers of a file are drawn, and which prompts are asked: every one, or every fourth."""

    path: Path
    sampling: dict[str, float]
    every: int

    @property
    def progress(self) -> Path:
        """What was answered so far, so that a run that was ended goes on from there."""
        return FOLDER / self.path.stem


WAYS = {"answers": Way(ANSWERS, {"temp": 0.0}, 1), "sampled": Way(SAMPLED, {"temp": 0.8, "top_p": 0.95}, 4)}


def likeliest(logits: np.ndarray) -> tuple[list[int], list[int]]:
    """The likeliest tokens of a step, the likeliest first, and their log probabilities in thousandths."""
    best = np.argpartition(-logits, KEPT)[:KEPT]
    best = best[np.lexsort((best, -logits[best]))]
    most = logits[best[0]]
    total = most + np.log(np.exp(logits - most).sum())
    return best.tolist(), np.rint(1000 * (logits[best] - total)).astype(int).tolist()


def answered(
    model: Any, eos: set[int], asked: Sequence[Prompt], ids: Sequence[list[int]], sampler: Any
) -> list[Answer]:
    """The answers of some prompts, which are read alone and decode together."""
    caches = []
    for prompt in ids:
        caches.append(make_prompt_cache(model))
        # Without the output layer, which is needed for the last token only.
        mx.eval(model.model(mx.array([prompt[:-1]]), cache=caches[-1]))
    cache = [BatchKVCache.merge(list(layer)) for layer in zip(*caches, strict=True)]
    found = [Answer(one.kind, one.source, prompt, [], [], []) for one, prompt in zip(asked, ids, strict=True)]
    rows, tokens = list(range(len(ids))), [prompt[-1] for prompt in ids]
    for _ in range(TOKENS):
        logits = model(mx.array(tokens)[:, None], cache=cache)[:, -1]
        drawn = sampler(nn.log_softmax(logits)).tolist()
        for row, token, one in zip(rows, drawn, np.array(logits), strict=True):
            best, logprobs = likeliest(one)
            found[row].answer.append(token)
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


def about(way: Way) -> dict[str, Any]:
    versions = {name: version(name) for name in ("mlx", "mlx-lm", "numpy")}
    return {
        "model": "SmolLM2-135M-Instruct in float32",
        **way.sampling,
        "python": platform.python_version(),
        **versions,
    }


def record(what: str) -> None:
    """Answer what is not answered yet, and write the file when all is."""
    way = WAYS[what]
    model, tokenizer = load_fast(path_of("smollm2"))

    def encode(messages: Any) -> list[int]:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    asked = prompts(lambda messages: len(encode(messages)))[:: way.every]
    eos, sampler = set(tokenizer.eos_token_ids), make_sampler(**way.sampling)
    done = way.progress.read_text().splitlines() if way.progress.exists() else []
    with way.progress.open("a") as file:
        for start in range(len(done), len(asked), ROWS):
            some = asked[start : start + ROWS]
            mx.random.seed(start)
            answers = answered(model, eos, some, [encode(one.messages) for one in some], sampler)
            done += [json.dumps(asdict(answer)) for answer in answers]
            file.writelines(f"{line}\n" for line in done[-len(some) :])
            file.flush()
            print(f"answered {len(done)} of {len(asked)}", flush=True)
    write(way.path, about(way), [Answer(**json.loads(line)) for line in done])
    way.progress.unlink()
