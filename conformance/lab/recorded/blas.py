"""Load a llama in float32 with the matrix products of numpy, on a CPU several times as fast as those of mlx."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm import load
from mlx_lm.models import llama


class Product(nn.Module):  # type: ignore[misc]
    """A linear layer without bias, computed by numpy."""

    def __init__(self, weight: mx.array) -> None:
        super().__init__()
        # As an attribute with an underscore it is no parameter.
        self._weight = np.array(weight).T

    def __call__(self, x: mx.array) -> mx.array:
        rows = np.array(x).reshape(-1, x.shape[-1]) @ self._weight
        return mx.array(rows).reshape(*x.shape[:-1], -1)


def attention(queries: mx.array, keys: mx.array, values: mx.array, *, scale: float, mask: Any, **_: Any) -> mx.array:
    """Causal attention, computed by numpy. The shapes are (rows, heads, tokens, size)."""
    q, k, v = (np.array(x) for x in (queries, keys, values))
    rows, heads, n, size = q.shape
    groups, past = k.shape[1], k.shape[2]
    scores = scale * q.reshape(rows, groups, -1, size) @ k.swapaxes(-1, -2)
    scores = scores.reshape(rows, heads, n, past)
    if mask is not None:
        seen = np.tril(np.ones((n, past), bool), past - n) if isinstance(mask, str) else np.array(mask)
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return mx.array((weights.reshape(rows, groups, -1, past) @ v).reshape(q.shape))


def load_fast(path: str) -> tuple[Any, Any]:
    """The model and its tokenizer. The rest of it is mlx-lm's own code. No other llama of this process is as before."""
    model, tokenizer = load(path)
    model.set_dtype(mx.float32)
    llama.scaled_dot_product_attention = attention
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, child in list(part.children().items()):
                if isinstance(child, nn.Linear):
                    setattr(part, name, Product(child.weight))
    embedding = model.model.embed_tokens
    # A method in place of the method: a module would become a part with parameters.
    embedding.as_linear = Product(embedding.weight).__call__
    return model, tokenizer
