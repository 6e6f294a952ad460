"""Adapters call the features of one tree of mlx-lm, a module for each tree. docs/releases.md says how to write one.

An adapter is a module with some of the names below. None of them is required: a missing one counts as "not offered". It
imports the names of its tree at its top or where it uses them. If the tree lacks a name, the result says so. Several
adapters can fit a tree, for instance one of its new loop and one of its draft models; each drafter is asked.

    decode(model, prompt, drafts, **options)   yields (token, log probabilities or None, whether it was drafted)
    stream(model, prompt, drafts, tokenizer, **options)   yields the responses of stream_generate
    DRAFTERS    the names of the drafters that decode knows; each is judged, with its name in drafts.name
    OPTIONS     the options of generate_step that decode takes
    snapshot(caches), restore(caches, snapshot)
    can_trim(caches, n), trim(caches, n)       trim returns how many tokens it dropped from each cache
    COMMANDS    the arguments that turn drafting on, by command: {"generate": ["--draft-model", FIXTURE], ...}
    REQUEST     the fields of a request that turn drafting on in a server
    fits()      whether the adapter is for the installed mlx-lm; without it an adapter is used only by name
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from unittest.mock import patch

import mlx.core as mx
from mlx.utils import tree_map

from conformance import FIXTURE as PATH
from conformance.oracle.findings import not_offered

# The draft model for the commands.
FIXTURE = str(PATH)
# The adapters of this folder, in the order in which ``find`` tries them.
SHIPPED = ("series", "stock")
# The draft models that need not be right once.
WRONG = ("contrary", "unrelated")
# What drafts with a head.
HEADS = ("head", "head and edit")
FUNCTIONS = ("decode", "stream", "snapshot", "restore", "can_trim", "trim")
MAY_HAVE = {*FUNCTIONS, "DRAFTERS", "OPTIONS", "COMMANDS", "REQUEST", "fits"}
# The options of generate_step that a drafted loop may take too.
DECODING = {"max_tokens", "sampler", "logits_processors", "prompt_cache", "prefill_step_size"}
DECODING |= {"kv_bits", "kv_group_size", "quantized_kv_start"}


class Unusable(Exception):
    """The adapter cannot be used with this tree, or is wrong itself. The message says why."""


@dataclass
class Drafts:
    """What ``decode`` may draft from, and what it leaves."""

    name: str
    # The prompt, and the answer of plain decoding.
    right: Sequence[int]
    # The caches of a draft model after a decode. A second one goes on with them.
    left: list[Any] = field(default_factory=list)
    # The drafter that an adapter made, if a test may look at it.
    strategy: Any = None

    def draft_model(self, model: Any) -> Any:
        """A draft model that mostly agrees with ``model``, never does, or is of another architecture."""
        make = DRAFT_MODELS.get(self.name, similar)
        # A model has no hash, so its id is the key. Keeping the model keeps the id from being used again.
        if (id(model), make) not in _MADE:
            _MADE[id(model), make] = model, make(model)
        return _MADE[id(model), make][1]


_MADE: dict[tuple[int, Any], tuple[Any, Any]] = {}


def similar(model: Any) -> Any:
    """A copy of a model with slightly different weights."""
    made, key = deepcopy(model), mx.random.key(1)

    def changed(value: mx.array) -> mx.array:
        nonlocal key
        if not mx.issubdtype(value.dtype, mx.floating):
            return value
        # So that it is the same whatever was drawn before.
        key, own = mx.random.split(key)
        return value + 0.01 * mx.std(value) * mx.random.normal(value.shape, key=own)

    made.update(tree_map(changed, made.parameters()))
    mx.eval(made.parameters())
    return made


def contrary(model: Any) -> Any:
    """A draft model that drafts the token that ``model`` finds least likely."""
    made = deepcopy(model)

    def call(self: Any, *args: Any, **kwargs: Any) -> mx.array:
        return -super(made.__class__, self).__call__(*args, **kwargs)

    made.__class__ = type("Contrary", (type(made),), {"__call__": call})
    return made


# An unrelated draft model has other caches than these targets.
OTHER = {"qwen3_next": "gemma3_text", "llama": "deepseek_v41", "deepseek_v41": "mamba", "mamba": "nanbeige"}


def unrelated(model: Any) -> Any:
    """A draft model of another architecture with its own text. It is hardly ever right."""
    from conformance.subjects.architectures import build

    return build(OTHER.get(name_of(type(model)), "qwen3_next"))


DRAFT_MODELS = {"similar": similar, "contrary": contrary, "unrelated": unrelated}


class Adapters:
    """All adapters that are used for a tree. Of those that offer the same, the first one counts."""

    def __init__(self, modules: Sequence[ModuleType]) -> None:
        self._all = list(modules)
        self.drafters: dict[str, ModuleType] = {}
        for one in self._all:
            for name in getattr(one, "DRAFTERS", ()):
                self.drafters.setdefault(name, one)
        self.request = self._merged("REQUEST")
        self.name = " and ".join(map(name_of, self._all))
        # Whether all contracts hold for the tree, to the letter.
        self.is_series = "series" in map(name_of, self._all)
        if not self.is_series:
            # The place of a drafter decides which cases it gets: those of a draft model are to be those of the base.
            self.drafters = dict(sorted(self.drafters.items(), key=lambda one: one[0] not in DRAFT_MODELS))

    def __contains__(self, name: str) -> bool:
        return any(hasattr(one, name) for one in self._all)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """One of the functions on caches."""
        found = (getattr(one, name) for one in self._all if name in FUNCTIONS and hasattr(one, name))
        if (function := next(found, None)) is None:
            raise AttributeError(name)
        return cast(Callable[..., Any], function)

    def _merged(self, name: str) -> dict[str, Any]:
        return {key: value for one in reversed(self._all) for key, value in getattr(one, name, {}).items()}

    @cached_property
    def commands(self) -> dict[str, list[str]]:
        """The arguments that turn drafting on. A command whose parser lacks one of them is left out."""
        found = self._merged("COMMANDS").items()
        return {name: list(how) for name, how in found if _parses(name.split(",")[0], how)}

    def options(self, drafter: str) -> set[str]:
        return set(getattr(self.drafters[drafter], "OPTIONS", ()))

    def decode(self, model: Any, prompt: list[int], drafts: Drafts, **options: Any) -> Any:
        return self.drafters[drafts.name].decode(model, prompt, drafts, **options)

    def stream(self, model: Any, prompt: list[int], drafts: Drafts, tokenizer: Any, **options: Any) -> Any:
        one = self.drafters[drafts.name]
        if not hasattr(one, "stream"):
            not_offered(f"the adapter {name_of(one)} has no stream")
        return one.stream(model, prompt, drafts, tokenizer, **options)


def module_of(command: str) -> ModuleType:
    # The package also has a function with the name generate.
    return importlib.import_module(f"mlx_lm.{command}")


def options_of(command: str) -> dict[str, argparse.Action]:
    """The options of a command, by their long names."""
    reading = patch.object(argparse.ArgumentParser, "parse_args", autospec=True, side_effect=SystemExit)
    with reading as parse_args, suppress(SystemExit):
        module_of(command).main()
    return by_name(parse_args.call_args.args[0])


def by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    options = (action for action in parser._actions if action.option_strings and action.dest != "help")
    return {max(action.option_strings, key=len): action for action in options}


def _parses(command: str, how: Sequence[str]) -> bool:
    """Whether the parser of a command has all of these options."""
    try:
        return {option for option in how if option.startswith("--")} <= options_of(command).keys()
    except ImportError:
        return False


def arguments_of(function: str) -> set[str]:
    """The arguments of a function of mlx_lm.generate, so that an adapter claims only what is there.

    One that takes others by ``**`` takes those of decoding.
    """
    found = getattr(module_of("generate"), function, None)
    named = inspect.signature(found).parameters if found is not None else {}
    return set(named) | (DECODING if any(one.kind is one.VAR_KEYWORD for one in named.values()) else set())


def name_of(module: Any) -> str:
    """The last part of the name of a module, or of that of a class."""
    return str(getattr(module, "__module__", module.__name__)).rpartition(".")[2]


def offered(module: ModuleType) -> set[str]:
    return {name for name in MAY_HAVE - {"fits"} if getattr(module, name, None)}


def load(name: str) -> ModuleType:
    """Load an adapter of this folder by its name, or from a file.

    Raises:
        Unusable: if there is none, if it needs a name that the tree does not have, or if it is wrong itself.
    """
    path = Path(name)
    if name not in SHIPPED and not path.is_file():
        raise Unusable(f"{name} is no file and no adapter of the suite: {', '.join(SHIPPED)}.")
    try:
        if name in SHIPPED:
            return importlib.import_module(f"{__name__}.{name}")
        module = ModuleType(path.stem)
        module.__file__ = name
        exec(compile(path.read_text("utf-8"), name, "exec"), vars(module))
    except (ImportError, SyntaxError) as error:
        raise Unusable(f"the adapter {name} cannot be imported here: {error}.") from error
    may_have = ", ".join(sorted(MAY_HAVE))
    if unknown := {n for n in vars(module) if n.isupper() and not n.startswith("_")} - MAY_HAVE - {"FIXTURE"}:
        raise Unusable(f"{name_of(module)} has {', '.join(sorted(unknown))}; what it may have is {may_have}.")
    if not offered(module):
        raise Unusable(f"{name_of(module)} offers nothing of what it may have: {may_have}.")
    return module


def find() -> Adapters:
    """The adapters of this folder that fit the installed mlx-lm."""
    found = []
    for name in SHIPPED:
        # One that needs a name which the tree lacks does not fit.
        with suppress(Unusable):
            if (module := load(name)).fits():
                found.append(module)
    if not found:
        raise Unusable(f"none of the adapters fits: {', '.join(SHIPPED)}.")
    return Adapters(found)
