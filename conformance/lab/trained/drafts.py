"""What a trained head drafts at each place of the streams that it is judged on."""

from __future__ import annotations

import json

import torch
import torch.nn.functional as F
from torch import Tensor

from conformance.lab.recorded.answers import ANSWERS, EDITS, SAMPLED, is_judge, read, write
from conformance.lab.trained import DRAFTS, HeadDrafts
from conformance.lab.trained.llama import Llama
from conformance.lab.trained.texts import folder_of
from conformance.lab.trained.train import Head, Unrolled, load_trained

# The longest draft, and the most tokens of an answer: edits are long.
LONGEST, ANSWER = 8, 300


@torch.inference_mode()
def drafted(
    head: Head, model: Llama, said: Tensor, tokens: list[int], start: int
) -> tuple[list[list[int]], list[list[int]]]:
    """The drafts after each token from ``start - 1`` on but the last, and how likely each token is, in percent."""
    ids = torch.tensor([tokens])
    states, _ = model.read(ids[:, :-1], torch.tensor([0]), [None] * len(model.layers))
    output, unrolled = model.embedding[said].T, Unrolled(head)
    # The first place whose draft is wanted: the head there takes the last token of the prompt.
    given, words, first, found = states[:, :-1], ids[:, 1:-1], start - 2, []
    for _ in range(LONGEST):
        given = unrolled.step(F.embedding(words, model.embedding), given)
        chances = torch.softmax((model.norm(given[0, first:]) @ output).float(), -1)
        best, which = chances.max(-1)
        found.append((said[which].tolist(), (100 * best).round().int().tolist()))
        # The next step is one place later.
        words, given = words.clone(), F.pad(given[:, :-1], (0, 0, 1, 0))
        words[0, first + 1 :] = said[which][:-1]
    n = len(tokens) - start
    drafts, likely = (
        [[step[part][i + s] for s, step in enumerate(found) if i + s < n] for i in range(n)] for part in (0, 1)
    )
    return drafts, likely


def record(name: str = "smollm2") -> None:
    model = Llama(folder_of(name))
    head, said = load_trained(name, model)
    for what, path in {"answers": ANSWERS, "sampled": SAMPLED, "edits": EDITS}.items():
        records = []
        for one in read(path)[1]:
            if is_judge(one["source"]):
                text = one["prompt"] + one["answer"][:ANSWER]
                found = drafted(head, model, said, text, len(one["prompt"]))
                records.append(HeadDrafts(one["kind"], one["source"], *found))
        write(DRAFTS / f"{what}.jsonl.gz", {"head": name}, records)
        print(json.dumps({what: len(records)}), flush=True)
