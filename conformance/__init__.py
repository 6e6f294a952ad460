"""The conformance suite for mlx-lm, and its tools. README.md in this folder describes each folder."""

import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[1]
# A llama of one million parameters, trained to copy, edit and quote.
FIXTURE = Path(__file__).parent / "fixture"


def missing(error: ImportError) -> str:
    """What to do about a package that this Python does not have."""
    package, _, module = (error.name or "").partition(".")
    if package == "mlx_lm" and module:
        return f"this mlx-lm has no prompt lookup ({error}): scripts/apply.sh installs one that has."
    if package in ("mlx", "mlx_lm"):
        return f"{sys.executable} has no mlx ({error}): scripts/apply.sh makes .venv/bin/python, which has."
    return f"{sys.executable} has no {package}, which this command needs."


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _one_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ImportError) and error.name and not error.name.startswith("conformance"):
        print(f"error: {missing(error)}", file=sys.stderr)
    elif not isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


# Python sets this while it looks for the module of python -m: the tools import mlx at their top.
if sys.argv[0] == "-m":
    sys.excepthook = _one_sentence
