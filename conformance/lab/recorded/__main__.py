"""Record the answers of SmolLM2 and the real edits that the simulation reads: conformance/lab/recorded/data.

python -m conformance.lab.recorded answers     # 300 prompts, some hours on two cores; goes on where it was ended
python -m conformance.lab.recorded sampled     # every fourth of them at temperature 0.8 with top-p 0.95 and a seed
python -m conformance.lab.recorded edits       # needs no model, only its tokenizer

Each first downloads their sources, pinned packages, into vendor/recorded.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm import load
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_sampler

from conformance.arguments import parser
from conformance.lab.recorded import sources
from conformance.lab.recorded.answers import FILES, KEPT, Answer, write
from conformance.lab.recorded.pairs import write_edits
from conformance.lab.recorded.prompts import Prompt, prompts
from conformance.smollm2 import path_of

# Requests that decode together, and the longest answer.
ROWS, TOKENS = 16, 96
# How the answers of a file are drawn, and whether every prompt is asked or every fourth.
WAYS: dict[str, tuple[dict[str, float], int]] = {
    "answers": ({"temp": 0.0}, 1),
    "sampled": ({"temp": 0.8, "top_p": 0.95}, 4),
}


def answered(
    model: Any, eos: Sequence[int], asked: Sequence[Prompt], ids: Sequence[list[int]], sampler: Any
) -> list[Answer]:
    """The answers of some prompts, which decode together."""
    batch = BatchGenerator(model, stop_tokens=[[token] for token in eos], sampler=sampler, prefill_batch_size=1)
    uids = batch.insert(list(ids), [TOKENS] * len(ids))
    made = [Answer(one.kind, one.source, prompt, [], [], []) for one, prompt in zip(asked, ids, strict=True)]
    found = dict(zip(uids, made, strict=True))
    while responses := batch.next_generated():
        for response in responses:
            logprobs = np.array(response.logprobs)
            best = np.argpartition(-logprobs, KEPT)[:KEPT]
            best = best[np.lexsort((best, -logprobs[best]))]
            found[response.uid].answer.append(response.token)
            found[response.uid].likeliest.append(best.tolist())
            found[response.uid].logprobs.append(np.rint(1000 * logprobs[best]).astype(int).tolist())
    return made


def record(what: str) -> None:
    """Answer what is not answered yet, and write the file when all is."""
    sampling, every = WAYS[what]
    model, tokenizer = load(path_of("smollm2"))
    model.set_dtype(mx.float32)

    def encode(messages: Any) -> list[int]:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    asked, progress = prompts(lambda messages: len(encode(messages)))[::every], sources.FOLDER / what
    done = progress.read_text().splitlines() if progress.exists() else []
    for start in range(len(done), len(asked), ROWS):
        some = asked[start : start + ROWS]
        mx.random.seed(start)
        ids = [encode(one.messages) for one in some]
        answers = answered(model, list(tokenizer.eos_token_ids), some, ids, make_sampler(**sampling))
        done += [json.dumps(asdict(answer)) for answer in answers]
        progress.write_text("\n".join(done) + "\n")
        print(f"answered {len(done)} of {len(asked)}", flush=True)
    versions = {name: version(name) for name in ("mlx", "mlx-lm", "numpy")}
    about = {"model": "SmolLM2-135M-Instruct in float32", **sampling, "python": platform.python_version(), **versions}
    write(FILES[what], about, [Answer(**json.loads(line)) for line in done])
    progress.unlink()


def main() -> None:
    options = parser(__doc__, "python -m conformance.lab.recorded")
    options.add_argument("what", choices=FILES)
    what = options.parse_args().what
    sources.download()
    if what == "edits":
        write_edits()
    else:
        record(what)


if __name__ == "__main__":
    main()
