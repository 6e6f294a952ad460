"""Train a head: one layer on the hidden state of a token and the embedding of the next, which shares the embedding.

It is a head of multi-token prediction (DeepSeek-V3, https://arxiv.org/abs/2412.19437) that also drafts from its own
states, so it is trained as it drafts (EAGLE-3, https://arxiv.org/abs/2503.01840): later steps see what the earlier ones
computed.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conformance.lab.trained import path_of
from conformance.lab.trained.llama import Layer, Llama
from conformance.lab.trained.texts import FOLDER, folder_of

# Drafted tokens that are trained, and what each counts.
STEPS = (1.0, 0.7, 0.5)
# How many places of prompts are learned from, and what hidden states count beside likely tokens.
OF_PROMPT, OF_STATES = 0.15, 1.0
# Tokens of a row, rows of a step, the largest step of AdamW, and how long it takes to get there.
LENGTH, ROWS, RATE, WARM_UP = 256, 8, 6e-4, 100
# The tokens that a head can say: the commonest ones.
SAID = 8192
# One text in so many is not trained on, to see how a run goes.
HELD_OUT = 16


# Tokens, hidden states, and which places are learned from, each with a row for each text.
Row = tuple[Tensor, Tensor, Tensor]


class Head(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        dim, eps = config["hidden_size"], config["rms_norm_eps"]
        self.embedding_norm, self.hidden_norm = nn.RMSNorm(dim, eps), nn.RMSNorm(dim, eps)
        self.first = nn.Linear(2 * dim, dim, bias=False)
        self.layer = Layer(config)

    def started_from(self, model: Llama) -> Head:
        """At first the last layer of the model, on its hidden state."""
        self.layer.load_state_dict(model.layers[-1].state_dict())
        dim = self.first.out_features
        self.first.weight.data = torch.cat([torch.zeros(dim, dim), torch.eye(dim)], 1)
        return self

    def entered(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        entered: Tensor = self.first(torch.cat([self.embedding_norm(embedded), self.hidden_norm(hidden)], -1))
        return entered


def later(x: Tensor, n: int) -> Tensor:
    """Moved to ``n`` tokens later, ``(rows, heads, tokens, size)``."""
    return F.pad(x[:, :, : x.shape[2] - n], (0, 0, n, 0))


class Unrolled:
    """Drafts from every place of a text at once: in step ``s`` from the states of step ``s - 1`` one place before.

    A token of step ``s`` sees what step 1 computed up to ``s - 1`` places before it, and of the steps since then the
    place that belongs to the same draft. The rest is as if it drafted from each place alone.
    """

    def __init__(self, head: Head) -> None:
        self.head, self.keys, self.values = head, list[Tensor](), list[Tensor]()

    def step(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The head's hidden states of the next step, shape ``(rows, tokens, dim)`` as both arguments."""
        layer, s = self.head.layer, len(self.keys)
        x = self.head.entered(embedded, hidden)
        rows, n, _ = x.shape
        q, k, v = layer.projected(x, torch.arange(n).expand(rows, n))
        for kept, one in ((self.keys, k), (self.values, v)):
            kept.append(one.repeat_interleave(layer.n_heads // layer.n_groups, 1))
        columns = torch.arange(n)
        first = q @ self.keys[0].transpose(-1, -2)
        first = first.masked_fill(columns > columns[:, None] - s, -1e9 if s else -math.inf)
        own = [(q * later(self.keys[r], s - r)).sum(-1, keepdim=True) for r in range(1, s + 1)]
        weights = torch.softmax(torch.cat([first, *own], -1) / math.sqrt(q.shape[-1]), -1)
        attended = weights[..., :n] @ self.values[0]
        for r in range(1, s + 1):
            attended = attended + weights[..., n + r - 1 : n + r] * later(self.values[r], s - r)
        return layer.rest(x, attended)


def losses(head: Head, model: Llama, said: Tensor, row: Row) -> tuple[Tensor, list[float]]:
    """The loss on some rows, and without gradients how often each step says what the model says.

    ``hidden[:, i]`` was computed from ``tokens[:, : i + 1]``, so place ``i`` of the head takes token ``i + 1``.
    """
    tokens, hidden, asked = row
    asked = asked[:, 1:].clone()
    # The first places have no earlier steps.
    asked[:, : len(STEPS) - 1] = False
    embedded, output = F.embedding(tokens[:, 1:], model.embedding), model.embedding[said].T
    with torch.no_grad():
        wanted = model.norm(hidden[:, 1:][asked])
        right = torch.softmax(wanted @ output, -1)
    unrolled, states, total, found = Unrolled(head), hidden[:, :-1], torch.zeros(()), []
    for s, weight in enumerate(STEPS):
        states = unrolled.step(embedded, F.pad(states[:, :-1], (0, 0, 1, 0)) if s else states)
        normed = model.norm(states[asked])
        logits = normed @ output
        entropy = -(right * torch.log_softmax(logits.float(), -1)).sum(-1).mean()
        total = total + weight * (entropy + OF_STATES * F.smooth_l1_loss(normed.float(), wanted.float()))
        if not torch.is_grad_enabled():
            found.append((logits.argmax(-1) == right.argmax(-1)).float().mean().item())
    return total, found


def cut(text: dict[str, Any], rng: random.Random) -> Row:
    """A part of a text that is no longer than a row."""
    n = min(len(text["hidden"]), LENGTH)
    start = rng.randrange(len(text["hidden"]) - n + 1)
    tokens = torch.tensor(text["tokens"][start : start + n])
    asked = [i >= text["answer"] - 1 or rng.random() < OF_PROMPT for i in range(start, start + n)]
    return tokens, text["hidden"][start : start + n], torch.tensor(asked)


def batch(texts: Sequence[dict[str, Any]], rng: random.Random) -> Row:
    rows = [cut(text, rng) for text in texts]
    return tuple(nn.utils.rnn.pad_sequence(list(column), batch_first=True) for column in zip(*rows, strict=True))


def commonest(texts: Sequence[dict[str, Any]], size: int) -> Tensor:
    counts = Counter(token for text in texts for token in text["tokens"])
    common = [token for token, _ in counts.most_common(SAID)]
    rest = (token for token in range(size) if token not in counts)
    return torch.tensor(
        sorted([*common, *(token for token, _ in zip(rest, range(SAID - len(common)), strict=False))])[:SAID]
    )


def train(name: str, minutes: float) -> None:
    """Train until the time is over, with a rate that falls to zero by then."""
    torch.manual_seed(0)
    model = Llama(folder_of(name))
    texts = torch.load(FOLDER / f"{name}.pt", weights_only=True)
    rng = random.Random(0)
    rng.shuffle(texts)
    kept, texts = texts[::HELD_OUT], [text for i, text in enumerate(texts) if i % HELD_OUT]
    said = commonest(texts, len(model.embedding))
    head = Head(model.config).started_from(model)
    optimizer = torch.optim.AdamW(head.parameters(), lr=RATE, weight_decay=0.02, betas=(0.9, 0.95))
    start = shown = time.monotonic()
    n_steps = 0
    while (spent := (time.monotonic() - start) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (n_steps + 1) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * spent))
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = losses(head, model, said, batch(rng.sample(texts, ROWS), rng))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        n_steps += 1
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            print(f"step {n_steps}, {100 * spent:.0f} %, {evaluated(head, model, said, kept)}", flush=True)
    save(head, said, name, evaluated(head, model, said, kept))


@torch.no_grad()
def evaluated(head: Head, model: Llama, said: Tensor, texts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rng, rows = random.Random(1), []
    for start in range(0, len(texts), ROWS):
        with torch.autocast("cpu", torch.bfloat16):
            loss, found = losses(head, model, said, batch(texts[start : start + ROWS], rng))
        rows.append([loss.item(), *found])
    loss, *found = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return {"loss": round(loss, 3), "as the model": [round(value, 3) for value in found]}


def save(head: Head, said: Tensor, name: str, reached: dict[str, Any]) -> None:
    """Keep the weights in 8 bits, with a scale for each row of a matrix."""
    weights = {"said": said.to(torch.int32)}
    for key, weight in head.state_dict().items():
        if weight.dim() == 2:
            weights[f"{key}.scale"] = scale = weight.abs().amax(1, keepdim=True) / 127
            weights[key] = (weight / scale).round().to(torch.int8)
        else:
            weights[key] = weight.float()
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path, {"reached": json.dumps(reached)})
    print(json.dumps({"weights": str(path), **reached}))


def load_trained(name: str, model: Llama) -> tuple[Head, Tensor]:
    """The head as it was kept, in the type of its model, and the tokens that it can say."""
    kept = load_file(path_of(name))
    said = kept.pop("said").long()
    head = Head(model.config)
    head.load_state_dict({n: w * kept.get(f"{n}.scale", 1) for n, w in kept.items() if not n.endswith(".scale")})
    return head.to(model.embedding.dtype), said
