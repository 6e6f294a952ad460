"""What the product drafts with, read from its package: a table that lists strategies is compared with this."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import mlx_lm.draft
from mlx_lm.draft.options import DRAFT_TYPES
from mlx_lm.draft.strategy import DraftStrategy


def is_strategy(cls: Any) -> bool:
    """Whether a class has the methods of the protocol. A planner, which has them too, is asked for another number."""
    methods = all(hasattr(cls, name) for name in ("observe", "propose", "accept"))
    is_class = inspect.isclass(cls) and methods and cls is not DraftStrategy
    return is_class and list(inspect.signature(cls.propose).parameters) == ["self", "n_max"]


def strategies() -> list[type[Any]]:
    """The classes of any module of mlx_lm.draft that are strategies."""
    modules = [import_module(module.name) for module in iter_modules(mlx_lm.draft.__path__, "mlx_lm.draft.")]
    return sorted({one for module in modules for one in vars(module).values() if is_strategy(one)}, key=str)


def without_a_row(types: Iterable[str], classes: Iterable[type[Any]], table: str) -> list[str]:
    """A sentence for each draft type and each strategy of the product that a table does not have."""
    missing = [f"draft_type={name!r}" for name in DRAFT_TYPES if name not in set(types)]
    missing += [f"{cls.__module__}.{cls.__name__}" for cls in strategies() if cls not in set(classes)]
    return [f"{name} drafts, and no test asks it: add a row to {table}" for name in missing]
