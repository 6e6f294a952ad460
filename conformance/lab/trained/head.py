"""A trained head as mlx-lm drafts with it: ``HeadedModel(model, load_head("smollm2", model))``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import TransformerBlock


class TrainedHead(nn.Module):
    """One layer on the hidden state of a token and the embedding of the next. It says the commonest tokens only."""

    hidden_layers = (-1,)

    def __init__(self, model: Any, said: mx.array) -> None:
        super().__init__()
        args = model.args
        self.embedding_norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.first = nn.Linear(2 * args.hidden_size, args.hidden_size, bias=False)
        self.layer = TransformerBlock(args)
        # With an underscore they are no parts of the head.
        self._said, self._embedding, self._norm = said, model.model.embed_tokens, model.model.norm
        self._output = self._embedding(said)
        self._read = sum(value.nbytes for _, value in tree_flatten(model.parameters()))

    @property
    def cost(self) -> float:
        """The share of the bytes of the weights that a token of it reads."""
        ours = sum(value.nbytes for _, value in tree_flatten(self.parameters())) + self._output.nbytes
        return float(ours / self._read)

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, hidden: mx.array, cache: list[Any]) -> mx.array:
        parts = [self.embedding_norm(self._embedding(tokens)), self.hidden_norm(hidden)]
        x = self.first(mx.concatenate(parts, axis=-1))
        return self.layer(x, create_attention_mask(x, cache[0]), cache[0])

    def likeliest(self, hidden: mx.array) -> tuple[mx.array, mx.array]:
        likely = mx.softmax(self._norm(hidden) @ self._output.T, axis=-1, precise=True)
        return self._said[mx.argmax(likely, axis=-1)], mx.max(likely, axis=-1)


def load_head(name: str, model: Any) -> TrainedHead:
    """The head that was trained for a model: "fixture" or "smollm2"."""
    kept = mx.load(str(Path(__file__).parent / "heads" / f"{name}.safetensors"))
    head = TrainedHead(model, kept.pop("said"))
    head.load_weights([(n, w * kept.get(f"{n}.scale", 1)) for n, w in kept.items() if not n.endswith(".scale")])
    head.set_dtype(model.model.norm.weight.dtype)
    return head
