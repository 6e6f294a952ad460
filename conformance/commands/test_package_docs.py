"""The commands in README.md and SERVER.md of the package draft as they are written, on the model of this repository."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from mlx_lm import stream_generate

from conformance import FIXTURE
from conformance.doors.commands import options_of
from conformance.doors.printed import drafting
from conformance.doors.programs import run
from conformance.doors.server.process import inside
from conformance.oracle.findings import broken
from conformance.series.patches import checkout
from conformance.subjects.prompts import PROMPTS

pytestmark = pytest.mark.patched_source
MODELS = re.compile(r"mistralai/Mistral-7B-Instruct-v0.3|<path_to_model_or_hf_repo>")


def blocks(file: str, language: str) -> list[str]:
    """The code in the section about drafting of a document, with the fixture as the model."""
    section = (checkout() / file).read_text().split("### Drafting from the Prompt\n")[1].split("\n### ")[0]
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    # A word of a command, or a string of Python as it is.
    fixture = str(FIXTURE) if language == "python" else shlex.quote(str(FIXTURE))
    return [MODELS.sub(fixture, block).replace("\\\n", " ") for block in found]


@pytest.mark.parametrize("number", range(2))
def test_a_command_of_the_readme_drafts(number: int, tmp_path: Path) -> None:
    (tmp_path / "draft.txt").write_text("Changes:\n- one\n- two\n")
    line = blocks("README.md", "bash")[number]
    name, *options = shlex.split(line)
    command = ["-m", "mlx_lm", name.removeprefix("mlx_lm."), *options, "--max-tokens", "20"]
    done = run(command, cwd=tmp_path, typed="Repeat: a b c d.\nq\n")
    if done.returncode or not drafting(done.stdout):
        broken(f"{line.strip()} does not draft: {done.stdout[-200:]}{done.stderr[-200:]}")


def test_the_python_of_the_readme(fixture: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    [code] = blocks("README.md", "python")
    exec(code, {})
    text, _, stats = capsys.readouterr().out.rpartition("DraftStats(")
    prompt = "Repeat this twice: one, two, three, four, five."
    assert text == "".join(response.text for response in stream_generate(*fixture, prompt))
    assert "strategy='EditStrategy'" in stats


def test_the_command_of_the_server() -> None:
    [block] = [block for block in blocks("mlx_lm/SERVER.md", "shell") if "--draft-type" in block]
    command, flag, model, *rest = shlex.split(block)
    assert (command, flag, model) == ("mlx_lm.server", "--model", str(FIXTURE))
    with inside(*rest) as server:
        usage = server.post({"messages": PROMPTS["rename"], "max_tokens": 40}).json()["usage"]
    assert usage["completion_tokens_details"]["draft"]["accepted"] > 0


def test_the_server_has_the_options_that_its_document_names() -> None:
    named = re.findall(r"--[a-z-]*draft[a-z-]*", (checkout() / "mlx_lm" / "SERVER.md").read_text())
    if unknown := set(named) - options_of("server").keys():
        broken(f"SERVER.md names {', '.join(unknown)}, which mlx_lm.server does not have")
