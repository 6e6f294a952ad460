"""What a document links to and names is in this repository, and README.md fits on the first screens."""

from __future__ import annotations

import re
import subprocess

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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_links_to_and_names_is_there(name: str) -> None:
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", without_code(text)):
        file, _, anchor = link.partition("#")
        target = ((ROOT / name).parent / file).resolve() if file else ROOT / name
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target.read_text()), f"{link}: there is no such heading"
    # Paths and modules, also in examples.
    for path in re.findall(r"(?<![\w/.-])((?:conformance|scripts|docs)/[\w/.-]*\w)", text):
        assert (ROOT / path).exists(), f"{path} is not there"
    for module in re.findall(r"python -m (conformance[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{module} cannot be run"


def test_the_readme_is_short_and_the_pages_are_seven() -> None:
    pages = {path.stem: path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    assert len(pages["README"].splitlines()) < 100
    assert sum(len(text.split()) for text in pages.values()) <= 19_150
    assert pages.keys() == {"README", "use", "drafting", "contracts", "benchmarks", "releases", "upstream", "faq"}
