"""Tasks for a real model, on text that nobody here wrote: the standard library's functions and their documentation."""

from __future__ import annotations

import inspect
import shlex
import textwrap
from collections.abc import Callable
from typing import Any

from conformance.subjects.prompts import Message, chat, fenced

TABLE = "name,born,field\nAda Lovelace,1815,mathematics\nMarie Curie,1867,physics\nAlan Turing,1912,computing"


def code(function: object) -> str:
    return fenced(inspect.getsource(function).strip())  # type: ignore[arg-type]


def rewrite() -> list[Message]:
    return chat(f"Rewrite this function with the parameter `width` renamed to `n_chars`.\n{code(textwrap.shorten)}")


TASKS: dict[str, Callable[[], list[Message]]] = {
    "rewrite": rewrite,
    "document": lambda: chat(f"Write this function again with type annotations.\n{code(textwrap.indent)}"),
    "quote": lambda: chat(
        f"Quote the first paragraph of this text word by word.\n\n{(inspect.getdoc(textwrap.TextWrapper) or '')[:700]}"
    ),
    "fill_json": lambda: chat(
        f"Write this table as JSON, a list of objects with the keys of the first line.\n{fenced(TABLE)}"
    ),
    "explain": lambda: chat(f"What does this function do?\n{code(shlex.join)}"),
    "answer": lambda: chat("What is the capital of France, and what is it known for?"),
}


def encode(tokenizer: Any, messages: list[Message]) -> list[int]:
    """The token ids of a conversation that the model answers next."""
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
