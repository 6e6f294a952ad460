"""Intercept the calls of the layers of a model, however the model stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

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
            if id(layer) not in layers:
                return call(layer, *args, **kwargs)
            return tap(layer, call, args, kwargs)

        return called

    with ExitStack() as stack:
        for kind in {type(layer) for layer in model.layers}:
            stack.enter_context(patch.object(kind, "__call__", through(kind.__call__)))
        yield
