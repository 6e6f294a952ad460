"""Adapters call the features of one tree of mlx-lm, a module for each tree. docs/releases.md says how to write one.

An adapter is a module with some of the names below. None of them is required: a missing one counts as "not offered". It
imports the names of its tree at its top or where it uses them. If the tree lacks a name, the result says so. Several
adapters can fit a tree, for instance one of its new loop and one of its draft models; each drafter is asked.

    decode(model, prompt, drafts, **options)   yields (token, log probabilities or None, whether it was drafted)
    DRAFTERS    the names of the drafters that decode knows; each is judged, with its name in drafts.name
    OPTIONS     the options of generate_step that decode takes
    snapshot(caches), restore(caches, snapshot)
    can_trim(caches, n), trim(caches, n)       trim returns how many tokens it dropped from each cache
    COMMANDS    the arguments that turn drafting on, by command: {"generate": ["--draft-model", FIXTURE], ...}
    REQUEST     the fields of a request that turn drafting on in a server
    MODELS      the configurations of models that the tree brings, by their module in mlx_lm.models
    fits()      whether the adapter is for the installed mlx-lm; without it an adapter is used only by name
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from conformance import FIXTURE as PATH
from conformance.adapters.looks import parses

# The draft model for the commands.
FIXTURE = str(PATH)
# The adapters of this folder, in the order in which ``find`` tries them.
SHIPPED = ("series", "backend", "prompt_lookup", "draft_type", "stock")
CONTRARY = "contrary"
FUNCTIONS = ("decode", "snapshot", "restore", "can_trim", "trim")
NAMES = {*FUNCTIONS, "DRAFTERS", "OPTIONS", "COMMANDS", "REQUEST", "MODELS", "fits"}


class Unusable(Exception):
    """The adapter cannot be used with this tree, or is wrong itself. The message says why."""


@dataclass(frozen=True)
class Drafts:
    """What ``decode`` may draft from."""

    name: str
    # The prompt, and the answer of plain decoding.
    right: Sequence[int]

    def draft_model(self, model: Any) -> Any:
        """A draft model that mostly agrees with ``model``, or never does if the drafts have to be wrong."""
        make = contrary if self.name == CONTRARY else similar
        # A model has no hash, so its id is the key. Keeping the model keeps the id from being used again.
        if (id(model), make) not in _MADE:
            _MADE[id(model), make] = model, make(model)
        return _MADE[id(model), make][1]


_MADE: dict[tuple[int, Any], tuple[Any, Any]] = {}


def similar(model: Any) -> Any:
    """A copy of a model with slightly different weights."""
    made = deepcopy(model)
    mx.random.seed(1)
    weights = [
        (path, value + 0.01 * mx.std(value) * mx.random.normal(value.shape))
        for path, value in tree_flatten(made.parameters())
        if mx.issubdtype(value.dtype, mx.floating)
    ]
    made.update(tree_unflatten(weights))
    mx.eval(made.parameters())
    return made


def contrary(model: Any) -> Any:
    """A draft model that drafts the token that ``model`` finds least likely."""
    made = deepcopy(model)

    def call(self: Any, *args: Any, **kwargs: Any) -> mx.array:
        return -super(made.__class__, self).__call__(*args, **kwargs)

    made.__class__ = type("Contrary", (type(made),), {"__call__": call})
    return made


class Adapter:
    """An adapter module and the features that it offers."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self.name = name
        self._names = vars(module)
        unknown = {n for n in self._names if n.isupper() and not n.startswith("_")} - NAMES - {"FIXTURE"}
        if unknown:
            raise Unusable(f"{name} has {', '.join(sorted(unknown))}; what it may have is {', '.join(sorted(NAMES))}.")
        if not self.offers():
            raise Unusable(f"{name} offers nothing: it has none of {', '.join(sorted(NAMES - {'fits'}))}.")

    def offers(self) -> set[str]:
        return {name for name in NAMES - {"fits"} if self._names.get(name)}

    def __contains__(self, name: str) -> bool:
        return bool(self._names.get(name))

    def fits(self) -> bool:
        try:
            return "fits" in self._names and bool(self._names["fits"]())
        except ImportError:
            return False

    def get(self, name: str, default: Any) -> Any:
        return self._names.get(name, default)


class Adapters:
    """All adapters that are used for a tree. Of those that offer the same, the first one counts."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._all = list(adapters)

    @property
    def name(self) -> str:
        return " and ".join(adapter.name for adapter in self._all)

    def __contains__(self, name: str) -> bool:
        return any(name in adapter for adapter in self._all)

    def _merged(self, name: str) -> dict[str, Any]:
        return {key: value for adapter in reversed(self._all) for key, value in adapter.get(name, {}).items()}

    @property
    def commands(self) -> dict[str, list[str]]:
        """The arguments that turn drafting on. A command whose parser lacks one of them is left out."""
        return {
            name: list(options)
            for name, options in self._merged("COMMANDS").items()
            if parses(name.split(",")[0], [option for option in options if option.startswith("--")])
        }

    @property
    def request(self) -> dict[str, Any]:
        return self._merged("REQUEST")

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        return self._merged("MODELS")

    @property
    def _by_drafter(self) -> dict[str, Adapter]:
        made: dict[str, Adapter] = {}
        for adapter in self._all:
            for name in adapter.get("DRAFTERS", ()) if "decode" in adapter else ():
                made.setdefault(name, adapter)
        return made

    @property
    def drafters(self) -> list[str]:
        return list(self._by_drafter)

    def options(self, drafter: str) -> set[str]:
        return set(self._by_drafter[drafter].get("OPTIONS", ()))

    def decode(self, model: Any, prompt: list[int], drafts: Drafts, **options: Any) -> Any:
        return self._by_drafter[drafts.name].get("decode", None)(model, prompt, drafts, **options)

    def snapshot(self, caches: list[Any]) -> Any:
        return self.function("snapshot")(caches)

    def restore(self, caches: list[Any], snapshot: Any) -> None:
        self.function("restore")(caches, snapshot)

    def can_trim(self, caches: list[Any], n: int) -> bool:
        return bool(self.function("can_trim")(caches, n))

    def trim(self, caches: list[Any], n: int) -> Any:
        return self.function("trim")(caches, n)

    def function(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = next(adapter for adapter in self._all if name in adapter).get(name, None)
        return found


def load(name: str) -> Adapter:
    """Load an adapter of this folder by its name, or from a file.

    Raises:
        Unusable: if there is none, or if it needs a name that the tree does not have.
    """
    try:
        if name in SHIPPED:
            return Adapter(importlib.import_module(f"{__name__}.{name}"), name)
        path = Path(name)
        if not path.is_file():
            raise Unusable(f"{name} is no file and no adapter of the suite: {', '.join(SHIPPED)}.")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return Adapter(module, path.stem)
    except (ImportError, SyntaxError) as error:
        raise Unusable(f"the adapter {name} cannot be imported here: {error}.") from error


def find() -> Adapters:
    """The adapters of this folder that fit the installed mlx-lm."""
    found = []
    for name in SHIPPED:
        try:
            adapter = load(name)
        except Unusable:
            continue
        if adapter.fits():
            found.append(adapter)
    if not found:
        raise Unusable(f"none of the adapters fits: {', '.join(SHIPPED)}.")
    return Adapters(found)
