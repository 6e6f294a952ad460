"""Record or replace the calls of a model's layers, whatever the model keeps them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

# Gets the layer, what calls it, and the arguments of the call; returns what the layer is to return.
Tap = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def tapped(model: Any, tap: Tap) -> Iterator[None]:
    """Let a function make every call of a layer.

    The class of the layers is changed for that, not the list that they are in: a model may walk another list.
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
