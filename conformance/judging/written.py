"""The source of functions with what they use of the suite, so that lines run without it."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

OWN = "conformance"


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def functions_of(thing: Any) -> list[Callable[..., Any]]:
    return [thing] if inspect.isfunction(thing) else [one for one in vars(thing).values() if inspect.isfunction(one)]


def belongs(thing: Any, home: str) -> bool:
    """Whether it is defined in the suite or in the file of an adapter."""
    return str(getattr(thing, "__module__", "")).split(".")[0] in (OWN, home.split(".")[0])


def written(*things: Callable[..., Any]) -> str:
    """What they are, what they use, and the imports for it."""
    imports: dict[str, None] = {}
    sources: dict[str, str] = {}

    def visit(thing: Any) -> None:
        if thing.__name__ in sources:
            return
        sources[thing.__name__] = ""
        home = thing.__module__
        used: dict[str, Any] = {}
        for function in functions_of(thing):
            used |= {
                name: function.__globals__[name] for name in names_in(function.__code__) if name in function.__globals__
            }
        for name, value in used.items():
            if isinstance(value, ModuleType):
                imports[f"import {value.__name__} as {name}"] = None
            elif (inspect.isfunction(value) or inspect.isclass(value)) and belongs(value, home):
                visit(value)
            elif hasattr(value, "__module__") and hasattr(value, "__qualname__"):
                imports[f"from {value.__module__} import {name}"] = None
            else:
                sources[name] = f"{name} = {value!r}\n"
        # Behind what it uses.
        del sources[thing.__name__]
        sources[thing.__name__] = textwrap.dedent(inspect.getsource(thing))

    for thing in things:
        visit(thing)
    return "".join(f"{line}\n" for line in sorted(imports)) + "".join("\n" + source for source in sources.values())
