"""What the command lines of the tools share."""

from __future__ import annotations

import argparse
import math


def parser(doc: str | None, prog: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help is the text at the top of a module, as it is written there."""
    return argparse.ArgumentParser(prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def margin(text: str) -> float | str:
    """A number from 0 on, or auto."""
    if text != "auto" and not 0 <= float(text) < math.inf:
        raise ValueError
    return text if text == "auto" else float(text)


def at_least_one(text: str) -> int:
    """A number from 1 on."""
    if int(text) < 1:
        raise ValueError
    return int(text)
