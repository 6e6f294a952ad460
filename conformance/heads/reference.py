"""What the head of a published checkpoint computes, in plain operations, without a cache and with no code of a head.

The layers of the block are those of the model file. Everything around them is written out: norms, the order of the two
halves, the projection, which state of the model it takes and which of its own it takes next.
"""

from __future__ import annotations

import copy
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.utils import load_model

from conformance.heads.forms import FORMS, OF_HEAD, ROOTS, Form, is_centred
from conformance.heads.published import fused, model_of

# conformance.lab.heads recorded with this mlx what transformers computes. Another one may draw other weights.
MLX = "0.32.4"
FILE = Path(__file__).with_name("recorded.safetensors")
# A short text and one that is longer than a window; each row follows from a token and the state before it.
LENGTHS, N_DRAFTED = (3, 21), 2
LENGTH = max(LENGTHS)
TEXT = [(7 * i + i * i // 5 + 3) % 64 for i in range(LENGTH + 1)]
# They have the same weights.
SAME = {"qwen3_5_moe": "qwen3_5_moe_fused"}

# The families that take the state before the last norm of the model. They also take their own before its norm.
BEFORE = ("mimo", "step3p5")
HIDDEN_FIRST = ("mimo",)
WINDOWS = {"exaone_moe": "sliding_window", "mimo_v2_flash": "sliding_window_size", "step3p5": "sliding_window"}


def recorded(family: str, length: int = LENGTH) -> mx.array | None:
    """The logits of a text of ``length`` rows and of the drafted ones, (L + n, V), if transformers has such a head."""
    if version("mlx") != MLX:
        return None
    return mx.load(str(FILE)).get(f"{SAME.get(family, family)}.{length}")


class Reference:
    """The head of a family in a folder, and the model of the same file."""

    def __init__(self, family: str, folder: Path) -> None:
        self.form = FORMS[family]
        self.depths = self.form.depths()
        self.config = json.loads((folder / "config.json").read_text())
        self.text = self.config.get("text_config", self.config)
        self.raw: dict[str, mx.array] = {}
        for path in folder.glob("*.safetensors"):
            self.raw |= mx.load(str(path))
        self.model, _ = load_model(folder)
        self.layers = self._layers(family)

    def _layers(self, family: str) -> dict[int, Any]:
        """The layers of the head by their numbers, as layers that the model has behind its own."""
        root = ROOTS.get(self.form.model, "model.layers.")
        others = {name for form in self.depths for name in (*form.parts, *form.own)}
        weights = dict[str, mx.array]()
        for name, value in self.raw.items():
            for number, prefix in self.form.layers.items():
                if name.startswith(prefix) and name not in others:
                    name = name.replace(prefix, f"{root}{number}.")
                    for of_layer, of_head in OF_HEAD.get(self.form.model, {}).items():
                        name = name.replace(of_head, of_layer)
            if name not in others:
                weights[name] = value
        if self.form.model == "qwen3_5_moe":
            weights = fused(weights)
        # Of other weights, which none is to stay of
        wide = model_of(family, seed=1)
        wide.load_weights(list(wide.sanitize(weights).items()), strict=False)
        return {number: wide.layers[number] for number in self.form.layers}

    def states(self, tokens: list[int]) -> mx.array:
        """The states of the model, shape (1, L, n), after its last norm or before it."""
        inner = copy.copy(getattr(self.model, "backbone", None) or self.model.model)
        if self.form.model in BEFORE:
            inner["norm_f" if "norm_f" in inner else "norm"] = nn.Identity()
        made: mx.array = inner(mx.array([tokens]))
        return made

    def norm(self, x: mx.array, name: str | None) -> mx.array:
        """Root mean square, with a weight that may be stored minus one."""
        if name is None:
            return x
        weight = self.raw[name] + is_centred(self.form)
        keys = ("rms_norm_eps", "layernorm_epsilon", "layer_norm_epsilon")
        eps = next(self.text[key] for key in keys if key in self.text)
        return x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight

    def _matrix(self, own: str | None, names: tuple[str, ...]) -> mx.array:
        """A matrix of the head, or that of the model with one of these ends."""
        if own:
            return self.raw[own]
        return next(value for end in names for name, value in self.raw.items() if name.endswith(end))

    def rows(self, form: Form, tokens: list[int], states: mx.array) -> tuple[mx.array, mx.array]:
        """For pairs of a token and a state before it: the states taken next, (1, L, n), and logits, (1, L, V)."""
        embedding_norm, hidden_norm, projection, last_norm = form.parts
        embedding = self._matrix(form.own[0], ("embed_tokens.weight", "embeddings.weight"))
        halves = [self.norm(embedding[mx.array([tokens])], embedding_norm), self.norm(states, hidden_norm)]
        if self.form.model in HIDDEN_FIRST:
            halves.reverse()
        x = mx.concatenate(halves, axis=-1) @ self.raw[str(projection)].T
        x = self._block(form, x, self._mask(len(tokens)))
        normed = self.norm(x, last_norm)
        ends = ("lm_head.weight",) if not self.text.get("tie_word_embeddings") else ("embed_tokens.weight",)
        logits = normed @ self._matrix(form.own[1], ends).T
        return x if self.form.model in BEFORE else normed, logits

    def _block(self, form: Form, x: mx.array, mask: mx.array) -> mx.array:
        layers = [self.layers[number] for number in form.layers]
        if form.model == "longcat_flash":
            [layer] = layers
            x = x + layer.self_attn[0](layer.input_layernorm[0](x), mask)
            return x + layer.mlps[0](layer.post_attention_layernorm[0](x))
        for layer in layers:
            x = layer(x, mask, None)
        return x

    def _mask(self, n: int) -> mx.array:
        """Each row sees itself and those before it, in a window those that it reaches."""
        distance = mx.arange(n)[:, None] - mx.arange(n)
        window = self.text.get(WINDOWS.get(self.form.model, ""), n)
        return (distance >= 0) & (distance < window)

    def drafts(self, text: list[int], n: int) -> mx.array:
        """The logits, (L + n, V), of what follows a text of L + 1 tokens, row by row, and n tokens drafted behind it.

        Each depth takes the states of the one before it, with the tokens that are one further on. The last one goes on
        with rows of its own states.
        """
        tokens, logits = text[1:], list[mx.array]()
        hidden = self.states(text[:-1])
        for i in range(n + 1):
            made, of_rows = self.rows(self.depths[min(i, len(self.depths) - 1)], tokens, hidden)
            logits.append(of_rows[0, -1:] if i else of_rows[0])
            tokens = [*tokens, mx.argmax(of_rows[0, -1]).item()]
            if i + 1 < len(self.depths):
                tokens, hidden = tokens[1:], made
            else:
                hidden = mx.concatenate([hidden, made[:, -1:]], axis=1)
        return mx.concatenate(logits)
