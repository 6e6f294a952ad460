"""Each file of the suite follows the rule of conformance/README.md, and that document shows the imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conformance.meta.repository.rooms import ROWS_OF_TESTS, SUITE, complaints, drawing

# These tests are about this repository. The installed mlx-lm does not matter.
pytestmark = pytest.mark.repository
README = SUITE / "README.md"
RIGHT = {
    "conftest.py": "from conformance.scorecard.rows import find\n",
    "chat/test_chat.py": "from conformance.chat.chat_terminal import a\nfrom conformance.testing.texts.b import c\n",
    "chat/chat_terminal.py": "",
    "server/test_server.py": "from conformance.testing.texts import b\n",
    "testing/texts/b.py": "",
    "scorecard/rows.py": "",
}


def written(folder: Path, **changed: str) -> Path:
    """Write a suite of a few files. The name of a changed file has a dot for each slash."""
    for name, text in (RIGHT | {name.replace(".", "/") + ".py": text for name, text in changed.items()}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_each_file_is_in_its_room() -> None:
    assert complaints(SUITE) == []


def test_the_map_names_each_folder_and_draws_the_imports() -> None:
    text = README.read_text("utf-8")
    assert f"```mermaid\n{drawing(SUITE)}```\n" in text, "run: python -m conformance.meta.repository.rooms"
    for path in sorted(SUITE.rglob("__init__.py")):
        folder = path.parent.relative_to(SUITE).as_posix()
        said = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]
        if folder != ".":
            assert f"| `{folder}/` | {said} |" in text, f"{README} says something else of {folder}"
    assert all((SUITE / folder).is_dir() for folder in ROWS_OF_TESTS)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("loose", "", "loose.py lies in no folder."),
        ("bench.test_a", "", "bench/test_a.py is a test outside the rows of the scorecard."),
        ("chat.other", "", "chat/other.py helps no test of its folder by its name."),
        (
            "server.test_c",
            "pytestmark = pytest.mark.repository\n",
            "server/test_c.py has a test of this repository, which belongs to meta/.",
        ),
        ("testing.texts.d", "", "testing/texts/d.py is used by 0 of the other files: two have to need what is shared."),
        (
            "server.test_b",
            "def f():\n    from conformance.chat.test_chat import a\n",
            "server/test_b.py imports chat/test_chat.py, which belongs to a row.",
        ),
        (
            "bench.a",
            "from conformance.chat import chat_terminal\n",
            "bench/a.py imports chat/chat_terminal.py, which belongs to a row.",
        ),
        (
            "testing.texts.b",
            "from conformance.scorecard import rows\n",
            "testing/texts/b.py imports scorecard/rows.py, which is no part of testing/.",
        ),
    ],
)
def test_a_file_in_another_room_is_found(tmp_path: Path, name: str, text: str, said: str) -> None:
    assert complaints(written(tmp_path / "right")) == []
    assert complaints(written(tmp_path / "wrong", **{name: text})) == [said]
