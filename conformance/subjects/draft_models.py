"""Draft models for the models of families.py: one that mostly agrees with the target, and one that never does."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from conformance.subjects.families import Counted, model_of


class Contrary(Counted):
    """A draft model that drafts the token which the model finds least likely."""

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        return -super().__call__(inputs, cache)


@cache
def drafter_of(name: str) -> Counted:
    kind, _, family = name.rpartition(" like ")
    if not kind:
        return model_of(family)
    original = model_of(family)
    if kind == "contrary":
        return Contrary(original.model)
    model = deepcopy(original.model)
    mx.random.seed(1)
    weights = [
        (path, value + 0.01 * mx.std(value) * mx.random.normal(value.shape))
        for path, value in tree_flatten(model.parameters())
        if mx.issubdtype(value.dtype, mx.floating)
    ]
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())
    return Counted(model)
