"""Tasks for a real model, on text that nobody here wrote: the standard library's functions and their documentation."""

from __future__ import annotations

import inspect
import shlex
import textwrap
from collections.abc import Callable
from typing import Any

from conformance.subjects.prompts import Message, chat, fenced

TABLE = "name,born,field\nAda Lovelace,1815,mathematics\nMarie Curie,1867,physics\nAlan Turing,1912,computing"


def rewrite() -> list[Message]:
    source = inspect.getsource(textwrap.shorten).strip()
    return chat(f"Rewrite this function with the parameter `width` renamed to `n_chars`.\n{fenced(source)}")


def document() -> list[Message]:
    source = inspect.getsource(textwrap.indent).strip()
    return chat(f"Write this function again with type annotations.\n{fenced(source)}")


def quote() -> list[Message]:
    text = inspect.getdoc(textwrap.TextWrapper) or ""
    return chat(f"Quote the first paragraph of this text word by word.\n\n{text[:700]}")


def fill_json() -> list[Message]:
    return chat(f"Write this table as JSON, a list of objects with the keys of the first line.\n{fenced(TABLE)}")


def explain() -> list[Message]:
    return chat(f"What does this function do?\n{fenced(inspect.getsource(shlex.join).strip())}")


def answer() -> list[Message]:
    return chat("What is the capital of France, and what is it known for?")


TASKS: dict[str, Callable[[], list[Message]]] = {
    make.__name__: make for make in (rewrite, document, quote, fill_json, explain, answer)
}


def encode(tokenizer: Any, messages: list[Message]) -> list[int]:
    """The token ids of a conversation that the model answers next."""
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
