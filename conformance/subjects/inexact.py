"""Models whose blocks are slightly inexact, as on a device with a kernel of its own for several tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import mlx.core as mx


class OfAnotherKernel:
    """A model that is slightly inexact when several tokens are fed at once, as on a device with a kernel for blocks.

    The logits are off by up to ``logits``. The outputs of layers are off by the share ``layers``, so the keys, values
    and states of a block are inexact too.
    """

    def __init__(self, model: Any, logits: float = 0.0, layers: float = 0.0) -> None:
        self.model, self.bound, self.share = model, logits, layers
        self.layers = model.layers
        self.key = mx.random.key(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def seed(self, inputs: mx.array) -> None:
        """Seed the noise with the block, so that the same block always has the same noise."""
        self.key = mx.random.key(hash(tuple(inputs[0].tolist())) % 2**32)

    def noise(self, shape: tuple[int, ...]) -> mx.array:
        self.key, key = mx.random.split(self.key)
        drawn: mx.array = mx.random.uniform(-1, 1, shape, key=key)
        return drawn

    def off(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call of a layer, off by the share."""

        def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
            made = call(layer, *args, **kwargs)
            first = made[0] if isinstance(made, tuple) else made
            first = first * (1 + self.share * self.noise(first.shape))
            return (first, *made[1:]) if isinstance(made, tuple) else first

        return called

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        if inputs.shape[1] == 1:
            return self.model(inputs, cache=cache)
        self.seed(inputs)
        with ExitStack() as stack:
            # The classes of the layers: a model may use another list of them.
            for kind in {type(layer) for layer in self.layers} if self.share else ():
                stack.enter_context(patch.object(kind, "__call__", self.off(kind.__call__)))
            logits: mx.array = self.model(inputs, cache=cache)
        return logits + self.bound * self.noise(logits.shape) if self.bound else logits


class InBfloat16(OfAnotherKernel):
    """Logits rounded to bfloat16. They are off by up to two bfloat16 steps when several tokens are fed at once."""

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        logits: mx.array = self.model(inputs, cache=cache).astype(mx.bfloat16)
        if inputs.shape[1] == 1:
            return logits
        self.seed(inputs)
        steps = 2 * mx.finfo(logits.dtype).eps * mx.abs(logits)
        return logits + (steps * mx.round(self.noise(logits.shape))).astype(logits.dtype)
