"""`mlx_lm.generate` as a user types it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import FIXTURE
from conformance.doors.programs import run
from conformance.subjects.prompts import CODE, PROMPTS, fenced

SCRIPTS = Path(sys.executable).parent
LOOKUP = "--prompt-lookup-num-tokens"


def options(*args: str) -> list[str]:
    return ["--model", str(FIXTURE), "--max-tokens", "120", "--prompt", PROMPTS["rename"][0]["content"], *args]


def generate(*args: str) -> subprocess.CompletedProcess[str]:
    return run(["-m", "mlx_lm", "generate", *options(*args)])


def script(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A command that is installed with the package, as users type it."""
    return subprocess.run([str(SCRIPTS / f"mlx_lm.{name}"), *args], capture_output=True, text=True)


def text(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.split("==========\n")[1]


def drafting(done: subprocess.CompletedProcess[str]) -> tuple[int, int, float]:
    """(drafted tokens, accepted tokens, tokens for each forward pass)."""
    line = re.search(r"Drafting: \w+, (\d+) tokens drafted, (\d+) accepted, ([\d.]+) tokens-per-forward", done.stdout)
    assert line, done.stdout
    return int(line[1]), int(line[2]), float(line[3])


@pytest.fixture(scope="module")
def plain_text() -> str:
    done = script("generate", *options())
    assert "Drafting" not in done.stdout
    return text(done)


def test_the_flag_changes_the_speed_only(plain_text: str) -> None:
    got = generate(LOOKUP, "8")
    assert text(got) == plain_text
    assert "Drafting: EditStrategy" in got.stdout
    drafted, accepted, rate = drafting(got)
    assert drafted >= accepted > 0
    assert rate > 1.5


def test_a_text_to_draft_from(plain_text: str, tmp_path: Path) -> None:
    """The file holds the answer, so drafts start with its first tokens."""
    edited = tmp_path / "edited.md"
    edited.write_text(fenced(CODE.replace("text", "node")))
    # Long n-grams. With short ones the prompt alone drafts nearly as well.
    arguments = ("--draft-type", "ngram-mod", "--disable-adaptive-gate")
    without, got = generate(*arguments), generate(*arguments, "--draft-reference", str(edited))
    assert text(without) == text(got) == plain_text
    assert drafting(got)[1] > drafting(without)[1]


def test_a_memory_in_a_file(plain_text: str, tmp_path: Path) -> None:
    """The second run finds the answer in the file."""
    from mlx_lm.draft import NgramModTable

    arguments = ("--draft-type", "ngram-mod", "--draft-memory", str(tmp_path / "memory"), "--disable-adaptive-gate")
    first, second = generate(*arguments), generate(*arguments)
    assert text(first) == text(second) == plain_text
    assert drafting(second)[1] > drafting(first)[1]
    other = generate(*arguments, "--ngram-size", "4")
    assert other.returncode == 2
    assert "--draft-memory" in other.stderr
    NgramModTable(16, vocab_size=7).save(str(tmp_path / "memory"))
    foreign = generate(*arguments)
    assert foreign.returncode == 2
    assert "the n-gram table is for 7 tokens" in foreign.stderr.splitlines()[-1]


def test_a_draft_model_and_a_cached_prompt(tmp_path: Path) -> None:
    """The draft model reads the cached prompt, and drafts as well as with the whole prompt."""
    file = ["--prompt-cache-file", str(tmp_path / "cache.safetensors")]
    assert script("cache_prompt", "--model", str(FIXTURE), "--prompt", CODE, *file).returncode == 0
    without, got = generate(*file), generate(*file, "--draft-model", str(FIXTURE))
    assert text(got) == text(without)
    drafted, accepted, rate = drafting(got)
    assert accepted > 0.9 * drafted
    assert rate > 3
