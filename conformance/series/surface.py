"""List what a release of mlx-lm has that the suite does not know. It reads the source and imports nothing.

python -m conformance.series.surface TREE [OLD]
    prints a sentence for each new cache class, model file, option and signature; with OLD, also the changes since that
    tree in caches, generate and server
python -m conformance.series.surface --record
    writes the options and signatures of all pinned releases into surface.json
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import sys
import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from conformance import ROOT
from conformance.series.patches import RELEASES, commits, unpack

RECORD = Path(__file__).with_name("surface.json")
MODELS = "mlx_lm/models/"
# Methods of every cache. The series and the suite use them, whether a patch changes them or not.
CACHE_API = "mlx_lm/models/cache.py:_BaseCache."
# A class with one of these methods may be a cache, whatever its name is.
CACHE_METHODS = {"is_trimmable", "update_and_fetch", "make_mask"}

# Model files that some supported releases have and others do not.
SINCE: dict[str, tuple[str, ...]] = {
    "muse_spark": ("0.32.2",),
    "muse_spark_open": ("0.32.1",),
    "prism_hadamard_qwen35": ("0.32.1", "0.32.2"),
}
# Functions that nearly every test compares with, whether a patch changes them or not.
ALWAYS = ("mlx_lm/generate.py:generate_step",)
# The files that the series and the contracts are about.
WATCHED = ("mlx_lm/models/cache.py", "mlx_lm/generate.py", "mlx_lm/server.py")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules(tree: Path) -> list[tuple[str, ast.Module]]:
    paths = sorted((tree / "mlx_lm").rglob("*.py"))
    return [(path.relative_to(tree).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def _name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def caches(tree: Path) -> set[str]:
    """Every class that may be the cache of a layer, as ``file:Class``. A name with an underscore is a base class."""
    found = set()
    for file, module in modules(tree):
        for node in ast.walk(module):
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
        for file, module in modules(tree)
        for node in ast.walk(module)
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


def touched(before: Path, after: Path) -> set[str]:
    """The functions of ``before`` that ``after`` changes or removes."""
    old, new = functions(before), functions(after)
    files = {file: (after / file).exists() and _same(before / file, after / file) for file, _ in modules(before)}
    changed = {name: node for name, node in old.items() if not files[name.split(":")[0]]}
    return {name for name, node in changed.items() if name not in new or ast.dump(new[name]) != ast.dump(node)}


def _same(a: Path, b: Path) -> bool:
    return a.read_bytes() == b.read_bytes()


def configured() -> set[str]:
    """The models that the suite has a configuration for, or a reason to leave out."""
    folder = ROOT / "conformance" / "testing" / "models"
    for node in ast.parse((folder / "architectures.py").read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "UNRUNNABLE" and node.value:
            unrunnable = ast.literal_eval(node.value)
    return set(json.loads((folder / "architectures.json").read_text())) | set(unrunnable)


def known() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record


def complaints(tree: Path) -> list[str]:
    """A sentence for each thing that the suite does not know. It says what to record, and where."""
    record, found = known(), []
    for one in sorted(caches(tree) - set(record["caches"])):
        file, name = one.split(":")
        found.append(
            f"{file} has the cache class {name}, which the suite does not know: give it snap and restore in a patch, "
            'add a kind that holds it to KINDS of conformance/testing/caches/machines.py, and its name to "caches" of '
            "conformance/series/surface.json."
        )
    for model in sorted(models(tree) - configured()):
        found.append(
            f"{MODELS}{model}.py is a model without a configuration: add an entry to "
            "conformance/testing/models/architectures.json."
        )
    unknown: dict[str, list[str]] = defaultdict(list)
    for option in sorted(options(tree) - set(record["options"])):
        file, name = option.split(":")
        unknown[file].append(name)
    found += [
        f"{file} has the options {', '.join(names)}, which the suite does not know: see whether they change what is "
        "decoded or cached (then they need a test), and record them with python -m conformance.series.surface --record."
        for file, names in unknown.items()
    ]
    there = functions(tree)
    for name, signatures in record["signatures"].items():
        file, function = name.split(":")
        if name in there and (now := signature(there[name])) not in signatures:
            found.append(
                f"{function} of {file}, which the series builds on, takes {now} and took {signatures[0]}: see that the "
                "patches still fit, and record it with python -m conformance.series.surface --record."
            )
    return found


def gone(tree: Path) -> list[str]:
    """A sentence for each thing that the series or the suite needs and the tree lacks."""
    record, there = known(), functions(tree)
    lost = {
        "the cache classes": [c.split(":")[1] for c in sorted(set(record["caches"]) - caches(tree))],
        "the models": sorted(configured() - SINCE.keys() - models(tree)),
        "the functions that the series builds on": [n.split(":")[1] for n in record["signatures"] if n not in there],
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


def record() -> None:
    """Read the pinned releases, without and with the series. The record of the caches stays as it is."""
    all_options: set[str] = set()
    signatures: dict[str, dict[str, None]] = defaultdict(dict)
    for release in RELEASES:
        history = commits(release)
        with tempfile.TemporaryDirectory() as folder:
            ends = ("stock", history[0]), ("patched", history[-1])
            trees = [unpack(commit, Path(folder) / name, release) for name, commit in ends]
            used = touched(*trees) | {*ALWAYS} | {name for name in functions(trees[0]) if name.startswith(CACHE_API)}
            for tree in trees:
                all_options |= options(tree)
                there = functions(tree)
                for name in used & set(there):
                    signatures[name][signature(there[name])] = None
    kept = {name: list(found) for name, found in sorted(signatures.items())}
    found = {"caches": known()["caches"], "options": sorted(all_options), "signatures": kept}
    RECORD.write_text(json.dumps(found, indent=2) + "\n")


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m conformance.series.surface", description=__doc__, formatter_class=form
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("tree", nargs="?", type=Path, help="the folder of a release")
    what.add_argument("--record", action="store_true", help="write surface.json")
    parser.add_argument("old", nargs="?", type=Path, help="an older one to compare with")
    args = parser.parse_args()
    if args.record:
        record()
        print(f"recorded in {RECORD.relative_to(ROOT)}")
        return 0
    found = complaints(args.tree)
    if args.old is not None:
        print("\n".join(changes(args.old, args.tree)))
    print("\n".join([*found, *gone(args.tree)] or ["The suite knows all of it."]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
