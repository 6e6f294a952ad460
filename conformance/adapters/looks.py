"""Look at the signatures and parsers of the installed mlx-lm, so that an adapter claims only what is there."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

# The options of generate_step that a drafted loop may take too.
DECODING = (
    "max_tokens",
    "sampler",
    "logits_processors",
    "prompt_cache",
    "prefill_step_size",
    "kv_bits",
    "kv_group_size",
    "quantized_kv_start",
)


def generate_module() -> Any:
    """The module mlx_lm.generate. An import from the package gives the function of that name."""
    return importlib.import_module("mlx_lm.generate")


def takes(function: str, argument: str) -> bool:
    """Whether a function of mlx_lm.generate names an argument."""
    found = getattr(generate_module(), function, None)
    return found is not None and argument in inspect.signature(found).parameters


def options_of(function: str) -> tuple[str, ...]:
    """The options of decoding that a function of mlx_lm.generate takes, by name or with all others."""
    found = getattr(generate_module(), function, None)
    parameters = inspect.signature(found).parameters if found is not None else {}
    any_name = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return tuple(name for name in DECODING if any_name or name in parameters)


class _Parsing(Exception):
    pass


@cache
def _parser(command: str) -> argparse.ArgumentParser | None:
    def parse_args(parser: argparse.ArgumentParser, *_: Any) -> None:
        raise _Parsing(parser)

    with patch.object(argparse.ArgumentParser, "parse_args", parse_args):
        try:
            importlib.import_module(f"mlx_lm.{command}").main()
        except _Parsing as parsing:
            parser: argparse.ArgumentParser = parsing.args[0]
            return parser
        except ImportError:
            return None
    return None


def parses(command: str, options: Sequence[str]) -> bool:
    """Whether the parser of a command has all of these options."""
    parser = _parser(command)
    return parser is not None and all(option in parser._option_string_actions for option in options)
