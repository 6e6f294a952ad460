"""Ask the mlx-lm that is installed all cases, through an adapter, and write each outcome to a file.

python -m conformance.judging --out FILE [--adapter NAME|FILE] [--only caches]      what scripts/judge.sh runs
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# On Linux each compiled function starts a C++ compiler.
if sys.platform == "linux":
    os.environ.setdefault("MLX_DISABLE_COMPILE", "1")

# Where the cases are, by what --only takes.
PARTS = {
    "caches": ("caches:cases", "rows:cases", "states:cases"),
    "decoding": ("decoding:cases",),
    "commands": ("commands:cases",),
    "server": ("prefixes:cases",),
}


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\033[K{text[:100]}", file=sys.stderr, end="\r", flush=True)


def all_cases(adapter: Any, only: str | None) -> tuple[list[Any], dict[str, str]]:
    """The cases, and the parts that the tree lacks a name for, with what is missing."""
    made: list[Any] = []
    unasked: dict[str, str] = {}
    for part in [only] if only else PARTS:
        for where in PARTS[part]:
            module, function = where.split(":")
            try:
                made += getattr(importlib.import_module(f"conformance.judging.{module}"), function)(adapter)
            except ImportError as error:
                unasked[part] = str(error)
    return made, unasked


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.judging", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--adapter", help="an adapter of the suite or a file; default: the first that fits")
    parser.add_argument("--only", choices=PARTS, help="a part of the cases")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        import mlx_lm

        from conformance.adapters import Unusable, find, load
        from conformance.judging import caches, cases
        from conformance.testing.device import device
    except ImportError as error:
        print(f"this tree cannot be judged: {error}.", file=sys.stderr)
        return 2
    try:
        adapter = load(args.adapter) if args.adapter else find()
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2

    made, unasked = all_cases(adapter, args.only)
    with caches.small_steps():
        found = cases.ask(made, say)
    about = {"mlx-lm": mlx_lm.__version__, "file": str(Path(mlx_lm.__file__).parent), "mlx": version("mlx")}
    about |= {"device": device(), "python": platform.python_version(), "adapter": adapter.name}
    result = {**about, "seconds": round(time.monotonic() - started), "unasked": unasked}
    result["cases"] = {case: asdict(outcome) for case, outcome in found.items()}
    args.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    say("")
    return 0


if __name__ == "__main__":
    sys.exit(main())
