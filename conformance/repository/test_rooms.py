"""What the files of the suite import follows conformance/README.md, and that document has each folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import ROOT

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository
SUITE = ROOT / "conformance"


def imported(source: str) -> Iterator[str]:
    """The modules of the suite, and what is taken from them, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "conformance":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def complaints(suite: Path) -> list[str]:
    found = []
    for path in sorted(suite.rglob("*.py")):
        name = path.relative_to(suite).as_posix()
        for module in imported(path.read_text("utf-8")):
            _, room, *rest = module.split(".")
            if any(part.startswith("test_") for part in rest):
                found.append(f"{name} imports {module}, which is a test")
            elif name.startswith("testing/") and room not in ("testing", "doors") and (suite / room).is_dir():
                found.append(f"{name} imports {module}, which is no part of testing/")
    return found


def test_no_test_is_imported_and_what_is_shared_imports_no_tool() -> None:
    assert complaints(SUITE) == []


@pytest.mark.planted
@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        (
            "server/b.py",
            "def f():\n    from conformance.chat.test_a import x\n",
            "conformance.chat.test_a.x, which is a test",
        ),
        (
            "testing/b.py",
            "from conformance.chat.tool import x\n",
            "conformance.chat.tool.x, which is no part of testing/",
        ),
        ("testing/b.py", "from conformance import chat\n", "conformance.chat, which is no part of testing/"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, name: str, source: str, said: str) -> None:
    for folder in ("chat", "server", "testing"):
        (tmp_path / folder).mkdir()
    (tmp_path / "testing" / "a.py").write_text("from conformance import ROOT\nfrom conformance.testing import c\n")
    (tmp_path / "chat" / "test_a.py").write_text("from conformance.chat import tool\n")
    assert complaints(tmp_path) == []
    (tmp_path / name).write_text(source)
    assert complaints(tmp_path) == [f"{name} imports {said}"]


def test_the_map_names_each_folder() -> None:
    text = (SUITE / "README.md").read_text("utf-8")
    for path in sorted(SUITE.rglob("*/__init__.py")):
        said = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]
        assert f"| `{path.parent.relative_to(SUITE).as_posix()}/` | {said} |" in text
