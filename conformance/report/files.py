"""Read and merge the files of reports. A file may be damaged, or may not be a report at all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

# Goes up whenever the content of a report changes.
FORMAT = 2
# The shape of each part: a type, a list of a shape, or a choice with None.
_NUMBER = (int, float)
_SHAPE: dict[str, Any] = {
    "format": int,
    "about": dict.fromkeys("model type dtype chip device system mlx mlx-lm python made".split(), str)
    | {"bits": int, "weights_gb": _NUMBER},
    "speeds": [
        {"workload": str, "tokens": int, "same": bool, "plain_tps": _NUMBER, "speed": _NUMBER}
        | {"tokens_a_forward": _NUMBER, "strategy": str}
    ],
    "batch": [{"rows": int, "length": int, "cost": _NUMBER}],
    "left_out": [str],
}
_CHECK = {"exit": int, "prompts": [{"name": str, "verdict": str, "equal": int, "pairs": int}]}
_PROBE = {"rows": [{"length": int, "noise": (*_NUMBER, type(None)), "cost": _NUMBER}], "draft_margin": _NUMBER}
# The longest name that is accepted.
_LONGEST = 200


class Unreadable(Exception):
    """The file is no report. The message says why, and what to do."""


def read(path: Path) -> dict[str, Any]:
    """The report in a file."""
    try:
        found = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is damaged: it is no JSON ({error}).") from error
    if not isinstance(found, dict) or type(found.get("format")) is not int or "about" not in found:
        raise Unreadable(f"{path} is no report of scripts/report.sh.")
    if found["format"] != FORMAT:
        age = "an older" if found["format"] < FORMAT else "a newer"
        raise Unreadable(
            f"{path} was made by {age} scripts/report.sh (format {found['format']}, this is {FORMAT}): "
            "run the same one on both machines."
        )
    try:
        _match(found, _SHAPE, "")
        for name, shape in (("check", _CHECK), ("probe", _PROBE)):
            if found.get(name) is not None:
                _match(found[name], shape, f".{name}")
    except Unreadable as error:
        raise Unreadable(f"{path} is damaged: {error}.") from None
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _match(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, dict):
        if not isinstance(value, dict) or (missing := shape.keys() - value.keys()):
            lacks = "" if not isinstance(value, dict) else f", it lacks {', '.join(sorted(missing))}"
            raise Unreadable(f"{where or 'it'} is not what it was{lacks}")
        for name, part in shape.items():
            _match(value[name], part, f"{where}.{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise Unreadable(f"{where} is no list")
        for number, item in enumerate(value):
            _match(item, shape[0], f"{where}[{number}]")
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        raise Unreadable(f"{where} is {value!r}"[:_LONGEST])
    elif isinstance(value, str) and len(value) > _LONGEST:
        raise Unreadable(f"{where} is longer than a name")
    elif isinstance(value, float) and not math.isfinite(value):
        raise Unreadable(f"{where} is {value}")


def merged(before: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest report of each model on each chip and mlx, in this order."""
    by_key = {tuple(each["about"][name] for name in ("chip", "device", "model", "mlx")): each for each in before + new}
    return [by_key[key] for key in sorted(by_key)]
