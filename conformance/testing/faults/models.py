"""Simulate devices with slightly inexact blocks, and plant wrong rollbacks. A check has to tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from mlx_lm.draft.verify import BlockVerifier
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

# Gets the layer, its original call and the arguments. Returns the output of the layer.
Tap = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def tapped(model: Any, tap: Tap) -> Iterator[None]:
    """Send every call of a layer through a function.

    This patches the class of the layers, not a list of them, because a model may use another list.
    """
    layers = {id(layer) for layer in model.layers}

    def through(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
            return tap(layer, call, args, kwargs) if id(layer) in layers else call(layer, *args, **kwargs)

        return called

    with ExitStack() as stack:
        for kind in {type(layer) for layer in model.layers}:
            stack.enter_context(patch.object(kind, "__call__", through(kind.__call__)))
        yield


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

    def tap(self, layer: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = call(layer, *args, **kwargs)
        first = made[0] if isinstance(made, tuple) else made
        off = first * (1 + self.share * self.noise(first.shape))
        return (off, *made[1:]) if isinstance(made, tuple) else off

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        several = inputs.shape[1] > 1
        if several:
            self.seed(inputs)
        with tapped(self.model, self.tap) if several and self.share else nullcontext():
            logits: mx.array = self.model(inputs, cache=cache)
        return logits + self.bound * self.noise(logits.shape) if several and self.bound else logits


class InBfloat16(OfAnotherKernel):
    """Logits rounded to bfloat16. They are off by up to two bfloat16 steps when several tokens are fed at once."""

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        logits: mx.array = self.model(inputs, cache=cache).astype(mx.bfloat16)
        if inputs.shape[1] == 1:
            return logits
        self.seed(inputs)
        steps = 2 * mx.finfo(logits.dtype).eps * mx.abs(logits)
        return logits + (steps * mx.round(self.noise(logits.shape))).astype(logits.dtype)


accept = BlockVerifier.accept
RIGHT = {kind: kind.trim for kind in (KVCache, QuantizedKVCache, RotatingKVCache)}
# It comes with a later stage than what else is here.
drop: Any = getattr(ArraysCache, "trim", None)


def trim(cache: Any, n: int) -> None:
    """Trim rightly, whatever is planted."""
    next(RIGHT[kind] for kind in type(cache).__mro__ if kind in RIGHT)(cache, n)


def trim_one_short(cache: Any, n: int) -> int:
    trim(cache, max(n - 1, 0))
    return n


def trim_one_far(cache: Any, n: int) -> int:
    trim(cache, n + (n > 0))
    return n


def trim_and_swap_the_last_rows(cache: KVCache, n: int) -> int:
    """The number of rows is right, but their order is wrong."""
    trim(cache, n)
    if cache.offset < 2:
        return n
    last = mx.array([cache.offset - 1, cache.offset - 2])
    cache.keys[..., cache.offset - 2 : cache.offset, :] = cache.keys[..., last, :]
    return n


def trim_and_clear_a_row(cache: KVCache, n: int) -> int:
    trim(cache, n)
    if cache.offset > 0:
        cache.values[..., cache.offset - 1, :] = 0
    return n


def trim_out_of_step(cache: RotatingKVCache, n: int) -> int:
    """Each key is paired with the value of another token."""
    trim(cache, n)
    if n > 0:
        cache.values = mx.roll(cache.values, 1, axis=2)
    return n


def trim_to_the_wrong_place(cache: RotatingKVCache, n: int) -> int:
    """The rows move by one, so the next token overwrites a right one."""
    trim(cache, n)
    if n > 0:
        cache.keys, cache.values = (mx.roll(rows, 1, axis=2) for rows in (cache.keys, cache.values))
    return n


def keep_the_rejected_rows(cache: RotatingKVCache, n: int) -> int:
    cache.offset -= n
    return n


def keep_the_state(_: ArraysCache, n: int) -> int:
    return n


def drop_one_row_late(cache: ArraysCache, n: int) -> int:
    """The state still holds the first dropped token."""
    if n > 1:
        drop(cache, n - 1)
    cache.advance(-(n > 0))
    return n


def drop_to_zeros(cache: ArraysCache, n: int) -> int:
    drop(cache, n)
    if n > 0:
        cache.cache = [*cache.cache[:-1], mx.zeros_like(cache.cache[-1])]
    return n


def one_rejected_token_stays(verifier: BlockVerifier, n_accepted: int) -> None:
    accept(verifier, min(n_accepted + 1, verifier._n_draft))


def one_accepted_token_goes(verifier: BlockVerifier, n_accepted: int) -> None:
    accept(verifier, max(n_accepted - 1, 0))


def nothing_is_rejected(verifier: BlockVerifier, _: int) -> None:
    accept(verifier, verifier._n_draft)


# For each kind of cache: the class, the method to replace, and the replacement.
FAULTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "kv": [
        (KVCache, "trim", trim_one_short),
        (KVCache, "trim", trim_one_far),
        (KVCache, "trim", trim_and_swap_the_last_rows),
        (KVCache, "trim", trim_and_clear_a_row),
        (BlockVerifier, "accept", one_rejected_token_stays),
        (BlockVerifier, "accept", nothing_is_rejected),
    ],
    "quantized": [
        (QuantizedKVCache, "trim", trim_one_short),
        (QuantizedKVCache, "trim", trim_one_far),
        (BlockVerifier, "accept", one_rejected_token_stays),
        (BlockVerifier, "accept", nothing_is_rejected),
    ],
    "window": [
        (RotatingKVCache, "trim", trim_to_the_wrong_place),
        (RotatingKVCache, "trim", trim_out_of_step),
        (RotatingKVCache, "trim", keep_the_rejected_rows),
        (BlockVerifier, "accept", one_rejected_token_stays),
    ],
    "recurrent": [
        (ArraysCache, "trim", keep_the_state),
        (ArraysCache, "trim", drop_one_row_late),
        (ArraysCache, "trim", drop_to_zeros),
        (BlockVerifier, "accept", nothing_is_rejected),
    ],
}
