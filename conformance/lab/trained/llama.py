"""A llama in PyTorch, to read texts with, and the layer of which a draft head is made. Only training needs PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

# Keys and values of a layer, as they are before the tokens that are read now.
Past = tuple[Tensor, Tensor] | None


def rotated(x: Tensor, places: Tensor, theta: float, traditional: bool) -> Tensor:
    """Rotary position embedding of ``(rows, heads, tokens, size)``, with a place for each token of each row."""
    half = x.shape[-1] // 2
    angles = places[:, None, :, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, other = (x[..., ::2], x[..., 1::2]) if traditional else (x[..., :half], x[..., half:])
    parts = (one * cos - other * sin, one * sin + other * cos)
    return torch.stack(parts, -1).flatten(-2) if traditional else torch.cat(parts, -1)


class Layer(nn.Module):
    """A layer of a llama, with the names of its weights."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        dim, hidden, eps = config["hidden_size"], config["intermediate_size"], config["rms_norm_eps"]
        self.n_heads, self.n_groups = config["num_attention_heads"], config["num_key_value_heads"]
        self.theta, self.traditional = config["rope_theta"], config.get("rope_traditional", False)
        small = dim // self.n_heads * self.n_groups
        sizes = {"q": (dim, dim), "k": (dim, small), "v": (dim, small), "o": (dim, dim)}
        self.self_attn = nn.ModuleDict({f"{n}_proj": nn.Linear(a, b, bias=False) for n, (a, b) in sizes.items()})
        sizes = {"gate": (dim, hidden), "up": (dim, hidden), "down": (hidden, dim)}
        self.mlp = nn.ModuleDict({f"{n}_proj": nn.Linear(a, b, bias=False) for n, (a, b) in sizes.items()})
        self.input_layernorm = nn.RMSNorm(dim, eps)
        self.post_attention_layernorm = nn.RMSNorm(dim, eps)

    def projected(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values of some tokens, ``(rows, heads, tokens, size)``. Heads share keys and values."""
        x, attention = self.input_layernorm(x), self.self_attn
        counts = {"q": self.n_heads, "k": self.n_groups, "v": self.n_groups}
        q, k, v = (attention[f"{n}_proj"](x).unflatten(-1, (count, -1)).transpose(1, 2) for n, count in counts.items())
        q, k = (rotated(part, places, self.theta, self.traditional) for part in (q, k))
        return q, k, v

    def rest(self, x: Tensor, attended: Tensor) -> Tensor:
        """What follows the attention."""
        x = x + self.self_attn["o_proj"](attended.transpose(1, 2).flatten(-2))
        y, mlp = self.post_attention_layernorm(x), self.mlp
        result: Tensor = x + mlp["down_proj"](F.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))
        return result

    def forward(self, x: Tensor, places: Tensor, seen: Tensor, past: Past = None) -> tuple[Tensor, Past]:
        q, k, v = self.projected(x, places)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        return self.rest(x, F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)), (k, v)


class Llama:
    """A llama whose output layer is its embedding. It computes in bfloat16, as it is stored."""

    def __init__(self, folder: str, dtype: torch.dtype = torch.bfloat16) -> None:
        self.config = json.loads(Path(folder, "config.json").read_text())
        weights = {
            name.removeprefix("model."): w.to(dtype) for name, w in load_file(Path(folder, "model.safetensors")).items()
        }
        self.embedding = weights["embed_tokens.weight"]
        self.norm = nn.RMSNorm(self.embedding.shape[1], self.config["rms_norm_eps"]).to(dtype)
        self.norm.weight.data = weights["norm.weight"]
        self.layers = []
        for i in range(self.config["num_hidden_layers"]):
            layer = Layer(self.config).to(dtype)
            layer.load_state_dict(
                {n.removeprefix(f"layers.{i}."): w for n, w in weights.items() if n.startswith(f"layers.{i}.")}
            )
            self.layers.append(layer)

    def read(self, ids: Tensor, pads: Tensor, past: list[Past]) -> tuple[Tensor, list[Past]]:
        """The hidden states of the last layer, for rows that are padded on the left."""
        start = past[0][0].shape[2] if past[0] is not None else 0
        columns = torch.arange(start + ids.shape[1])
        places = (columns[start:] - pads[:, None]).clamp(min=0)
        seen = (columns <= columns[start:, None]) & (
            (columns >= pads[:, None, None]) | (columns == columns[start:, None])
        )
        x, kept = F.embedding(ids, self.embedding), []
        for layer, one in zip(self.layers, past, strict=True):
            x, now = layer(x, places, seen[:, None], one)
            kept.append(now)
        return x, kept

    def logits(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden) @ self.embedding.T

    @torch.inference_mode()
    def answers(
        self, prompts: list[list[int]], longest: int, eos: set[int], draw: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Let it answer some prompts. Each with its answer, and the hidden state of each token but the last."""
        width = max(map(len, prompts))
        pads = torch.tensor([width - len(prompt) for prompt in prompts])
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        past: list[Past] = [None] * len(self.layers)
        states, rows = [], ids
        for _ in range(longest):
            hidden, past = self.read(ids, pads, past)
            states.append(hidden)
            ids = draw(self.logits(hidden[:, -1]).float())[:, None]
            rows = torch.cat([rows, ids], 1)
            if all(eos.intersection(row[width:]) for row in rows.tolist()):
                break
        hidden = torch.cat(states, 1)
        for row, pad, of_row in zip(rows.tolist(), pads.tolist(), hidden, strict=True):
            end = next((i for i in range(width, len(row)) if row[i] in eos), len(row) - 1) + 1
            yield row[pad:end], of_row[pad : end - 1]
