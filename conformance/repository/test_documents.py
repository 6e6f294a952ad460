"""What a document links to and names is in this repository, and README.md fits on the first screens."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from conformance import ROOT

pytestmark = pytest.mark.repository
DOCUMENTS = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], capture_output=True, text=True).stdout.split()


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|^    .*?$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(path: Path) -> list[str]:
    """The links of a document that lead nowhere."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if re.match(r"\w+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_links_of_a_document_lead_somewhere(name: str) -> None:
    assert broken(ROOT / name) == []


@pytest.mark.planted
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A title, with `code`\n```\n# none\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-title-with-code) [c](https://x.org/y) `[d](gone.md)`\n# Here\n[e](#here)"
    )
    assert broken(page) == []
    page.write_text("[a](gone.md) [b](other.md#none) [c](#there)")
    assert broken(page) == ["gone.md", "other.md#none", "#there"]


# Paths and modules, also in examples.
PATHS = re.compile(r"(?<![\w/.-])((?:conformance|scripts|docs)/[\w/.-]*\w)")
MODULES = re.compile(r"python -m (conformance[\w.]*)")


def missing(text: str) -> set[str]:
    """The paths and modules of this repository that a text names, but which are not there."""
    paths = {name: [ROOT / name] for name in PATHS.findall(text)}
    for name in MODULES.findall(text):
        path = ROOT / name.replace(".", "/")
        paths[name] = [path.with_suffix(".py"), path / "__main__.py"]
    return {name for name, places in paths.items() if not any(place.exists() for place in places)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_names_is_there(name: str) -> None:
    assert missing((ROOT / name).read_text()) == set()


@pytest.mark.planted
def test_a_name_that_is_gone_is_found() -> None:
    assert missing("scripts/apply.sh, conformance/lab/demo/, python -m conformance.lab.demo, /tmp/scripts/x") == set()
    assert missing("scripts/gone.sh, `python -m conformance.gone`") == {"scripts/gone.sh", "conformance.gone"}


def test_the_readme_is_short_and_the_pages_are_six() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 100
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages == {"use", "drafting", "contracts", "benchmarks", "releases", "upstream"}
