"""List what a release of mlx-lm has that the suite does not know. It reads the source and imports nothing.

python -m conformance.series.surface TREE [OLD]
    prints a sentence for each new cache class and model file; with OLD, the release that the series is made for, also
    for each new option and changed signature, and for each file of caches, generate and server that changed
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

from conformance import ROOT
from conformance.series.patches import PATCHES

MODELS = "mlx_lm/models/"
# The kind of conformance/testing/caches/machines.py that holds a cache, or a sentence where it is none of a layer.
CACHES = {
    "mlx_lm/models/cache.py:ArraysCache": "arrays",
    "mlx_lm/models/cache.py:BatchKVCache": "batch",
    "mlx_lm/models/cache.py:BatchRotatingKVCache": "batch rotating",
    "mlx_lm/models/cache.py:CacheList": "list of kv and rotating",
    "mlx_lm/models/cache.py:ChunkedKVCache": "chunked",
    "mlx_lm/models/cache.py:ConcatenateKVCache": "concatenate",
    "mlx_lm/models/cache.py:KVCache": "kv",
    "mlx_lm/models/cache.py:LRUPromptCache": "It holds the prompt caches of requests.",
    "mlx_lm/models/cache.py:QuantizedKVCache": "quantized",
    "mlx_lm/models/cache.py:RotatingKVCache": "rotating",
    "mlx_lm/models/cache.py:TokenBuffer": "It holds the tokens of a request.",
    "mlx_lm/models/deepseek_v41.py:LayerCache": "layer",
}
# A class with one of these methods may be a cache, whatever its name is.
CACHE_METHODS = {"is_trimmable", "update_and_fetch", "make_mask"}

# Model files that some supported releases have and others do not.
SINCE: dict[str, tuple[str, ...]] = {
    "muse_spark": ("0.32.2",),
    "muse_spark_open": ("0.32.1",),
    "prism_hadamard_qwen35": ("0.32.1", "0.32.2"),
}
# The files that the series and the contracts are about.
WATCHED = ("mlx_lm/models/cache.py", "mlx_lm/generate.py", "mlx_lm/server.py")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules(tree: Path) -> list[tuple[str, ast.Module]]:
    paths = sorted((tree / "mlx_lm").rglob("*.py"))
    return [(path.relative_to(tree).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


@cache
def nodes(tree: Path) -> list[tuple[str, ast.ClassDef | ast.Call]]:
    """Every class and every call, also inside functions."""
    kinds = (ast.ClassDef, ast.Call)
    return [(file, node) for file, module in modules(tree) for node in ast.walk(module) if isinstance(node, kinds)]


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def caches(tree: Path) -> set[str]:
    """Every class that may be the cache of a layer, as ``file:Class``. A name with an underscore is a base class."""
    found = set()
    for file, node in nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            named = any(name.endswith("Cache") for name in [node.name, *map(_name, node.bases)])
            if named or CACHE_METHODS & {item.name for item in node.body if isinstance(item, Function)}:
                found.add(f"{file}:{node.name}")
    return found


def models(tree: Path) -> set[str]:
    """Every model file. A module without the two classes of a model is a part that models share."""
    found = set()
    for file, module in modules(tree):
        imported = {a.asname or a.name for node in module.body if isinstance(node, ast.ImportFrom) for a in node.names}
        names = imported | {node.name for node in module.body if isinstance(node, ast.ClassDef)}
        if file.startswith(MODELS) and names >= {"Model", "ModelArgs"}:
            found.add(file.removeprefix(MODELS).removesuffix(".py"))
    return found


def options(tree: Path) -> set[str]:
    """Every option of every parser, as ``file:--option``."""
    return {
        f"{file}:{argument.value}"
        for file, node in nodes(tree)
        if isinstance(node, ast.Call) and _name(node.func) == "add_argument"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and argument.value[:1] == "-"
    }


def functions(tree: Path) -> dict[str, Function]:
    """Every function and method, as ``file:Class.method``. Functions inside functions are left out."""
    found: dict[str, Function] = {}

    def visit(prefix: str, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(f"{prefix}{node.name}.", node.body)
            elif isinstance(node, Function):
                found[prefix + node.name] = node

    for file, module in modules(tree):
        visit(f"{file}:", module.body)
    return found


def signature(function: Function) -> str:
    """The arguments of a function with their defaults, without types."""
    arguments = copy.deepcopy(function.args)
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"({ast.unparse(arguments)})"


@cache
def touched() -> set[str]:
    """The files of the release that the series changes. They hold what it builds on."""
    return {name for patch in PATCHES for name in re.findall(r"^--- a/(mlx_lm/\S+)$", patch.read_text(), re.MULTILINE)}


def built_on(tree: Path) -> dict[str, str]:
    """The signatures of the functions in the files that the series changes."""
    return {name: signature(node) for name, node in functions(tree).items() if name.split(":")[0] in touched()}


def configured() -> set[str]:
    """The models that the suite has a configuration for, or a reason to leave out."""
    folder = ROOT / "conformance" / "testing" / "models"
    for node in ast.parse((folder / "architectures.py").read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "UNRUNNABLE" and node.value:
            unrunnable = ast.literal_eval(node.value)
    return set(json.loads((folder / "architectures.json").read_text())) | set(unrunnable)


def complaints(tree: Path, old: Path | None = None) -> list[str]:
    """A sentence for each thing that the suite, or the series made for ``old``, does not know, and what to do."""
    found = []
    for one in sorted(caches(tree) - set(CACHES)):
        file, name = one.split(":")
        found.append(
            f"{file} has the cache class {name}, which the suite does not know: give it snap and restore in a patch, "
            "add a kind that holds it to KINDS of conformance/testing/caches/machines.py, and its name to CACHES of "
            "conformance/series/surface.py."
        )
    for model in sorted(models(tree) - configured()):
        found.append(
            f"{MODELS}{model}.py is a model without a configuration: add an entry to "
            "conformance/testing/models/architectures.json."
        )
    if old is None:
        return found
    unknown: dict[str, list[str]] = defaultdict(list)
    for option in sorted(options(tree) - options(old)):
        file, name = option.split(":")
        unknown[file].append(name)
    found += [
        f"{file} has the options {', '.join(names)}, which are new: see whether they change what is decoded or cached. "
        "Then they need a test."
        for file, names in unknown.items()
    ]
    there = built_on(tree)
    for name, before in built_on(old).items():
        file, function = name.split(":")
        if (now := there.get(name, before)) != before:
            found.append(f"{function} of {file} takes {now} and took {before}: see that the patches still fit.")
    return found


def gone(tree: Path, old: Path | None = None) -> list[str]:
    """A sentence for each thing that the series or the suite needs and the tree lacks."""
    there = built_on(tree)
    lost = {
        "the cache classes": [c.split(":")[1] for c in sorted(set(CACHES) - caches(tree))],
        "the models": sorted(configured() - SINCE.keys() - models(tree)),
        "the functions": [n.split(":")[1] for n in (built_on(old) if old else ()) if n not in there],
    }
    return [f"It does not have {what} {', '.join(names)}." for what, names in lost.items() if names]


def changes(before: Path, after: Path) -> list[str]:
    """A sentence for each file that matters: the functions that a release adds, removes and changes."""
    old, new = functions(before), functions(after)
    found = []
    for file in WATCHED:
        of = [name for name in {**old, **new} if name.startswith(f"{file}:")]
        added, dropped = [n for n in of if n not in old], [n for n in of if n not in new]
        other = [n for n in of if n in old and n in new and ast.dump(old[n]) != ast.dump(new[n])]
        said = [
            f"{word} {', '.join(name.split(':')[1] for name in names)}"
            for word, names in (("adds", added), ("drops", dropped), ("changes", other))
            if names
        ]
        found.append(f"{file} {'; '.join(said) or 'is as it was'}.")
    return found


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m conformance.series.surface", description=__doc__, formatter_class=form
    )
    parser.add_argument("tree", type=Path, help="the folder of a release")
    parser.add_argument("old", nargs="?", type=Path, help="the folder of the release that the series is made for")
    args = parser.parse_args()
    found = complaints(args.tree, args.old)
    if args.old is not None:
        print("\n".join(changes(args.old, args.tree)))
    print("\n".join([*found, *gone(args.tree, args.old)] or ["The suite knows all of it."]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
