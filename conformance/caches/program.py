"""A program on prompt caches, as lines of Python that are run one by one and are also its reproduction."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from typing import Any, NoReturn

import mlx.core as mx
from mlx_lm.models import cache as cache_module

from conformance.adapters import Adapters
from conformance.caches import layers
from conformance.caches.kinds import STEP, Kind
from conformance.oracle.findings import REFUSAL, first_line, refused

FUNCTIONS = ("snapshot", "restore", "can_trim", "trim")
HEAD = """\
from __future__ import annotations
import copy
import mlx.core as mx
from mlx_lm.models.cache import *
"""


class Wrong(Exception):
    """What is seen and what should be, and the program that shows it."""

    def __init__(self, sentence: str, program: Program) -> None:
        super().__init__(sentence)
        self.sentence, self.program = sentence, program


class Program:
    def __init__(self, kind: Kind, adapter: Adapters) -> None:
        self.kind, self.adapter, self.lines = kind, adapter, list[str]()
        mine = {name: getattr(layers, name) for name in ("feed", "look", "merge", "offsets", "leaves")}
        theirs = {name: getattr(adapter, name) for name in FUNCTIONS if name in adapter}
        self.names = {"copy": copy, "mx": mx, **vars(cache_module), **kind.names, **mine, **theirs}

    def do(self, code: str, name: str = "") -> Any:
        """Run a line. With a name it is an assignment."""
        self.lines.append(f"{name} = {code}" if name else code)
        try:
            if name:
                exec(self.lines[-1], self.names)
                return self.names.get(name)
            return eval(code, self.names)
        except NotImplementedError as error:
            refused(error)
        except Exception as error:
            self.wrong(f"{code} raises {first_line(error)}")

    def ask(self, code: str) -> Any:
        """Run what changes nothing. It becomes a line of the program only where it shows what is wrong."""
        value = self.do(code)
        self.lines.pop()
        return value

    def refusal(self, code: str) -> str:
        """Run a line that the caches may refuse. Returns the error, if there is one."""
        try:
            eval(code, self.names)
        except (*REFUSAL, AttributeError) as error:
            # A cache of which upstream drops nothing may lack the method.
            return str(error) or type(error).__name__
        except Exception as error:
            self.wrong(f"{code} raises {first_line(error)}", code)
        self.lines.append(code)
        return ""

    def wrong(self, sentence: str, *shown: str) -> NoReturn:
        """The last line, or one that is ``shown``, shows it."""
        self.lines += shown
        raise Wrong(sentence, self)

    def text(self, sentence: str) -> str:
        """The program with what it needs."""
        *before, last = self.lines
        last = last if " = " in last else f"print({last})"
        lines = "\n".join([*before, f"{last}  # {sentence}"])
        made = dict.fromkeys(re.findall(r"\b[A-Z]\w+(?=\()", lines))
        steps = [f"{name}.step = {STEP}" for name in made if hasattr(self.names[name], "step")]
        lines = "\n".join([*steps, lines])
        called = [name for name in FUNCTIONS if f"{name}(" in lines.replace(f".{name}(", "")]
        return "\n".join([self.head(lines), *(defined(name, getattr(self.adapter, name)) for name in called), lines])

    def head(self, lines: str) -> str:
        used, text = ["feed", "leaves", "feed_keys"], HEAD
        if "ArraysCache" in self.kind.classes:
            used.append("feed_states")
            own = layers.block_state.__module__ == layers.__name__
            text += defined("block_state", layers.block_state) + ("\n" if own else "")
        if "LayerCache" in self.kind.classes:
            used.append("feed_groups")
            text += "from mlx_lm.models.deepseek_v41 import LayerCache, _append, _window_indices\n"
        used += ["chunk_mask"] * ("ChunkedKVCache" in self.kind.classes)
        used += [name for name in ("look", "offsets", "merge") if f"{name}(" in lines]
        return "\n\n".join([text, *(inspect.getsource(getattr(layers, name)) for name in used)])


def defined(name: str, function: Callable[..., Any]) -> str:
    """A function of the tree by its name in the program, or one that an adapter has of its own."""
    if not function.__module__.startswith("mlx_lm."):
        return inspect.getsource(function)
    renamed = f" as {name}" * (function.__name__ != name)
    return f"from {function.__module__} import {function.__name__}{renamed}"
