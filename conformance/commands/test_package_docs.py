"""Run the commands in the README.md and SERVER.md of the package as they are written.

Only the name of the model is replaced, and the answers are limited.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_lm import stream_generate

from conformance import FIXTURE
from conformance.doors.server.process import serve
from conformance.lab.demo import __main__ as demo
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
    return [MODELS.sub(fixture, block) for block in found]


def run(command: list[str], folder: Path, typed: str = "") -> str:
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, input=typed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    chat, generate = blocks("README.md", "bash")
    assert "Drafting: " in run(shlex.split(f"{chat} --max-tokens 20"), tmp_path, "Repeat: a b c d.\nq\n")
    (tmp_path / "draft.txt").write_text("Changes:\n- one\n- two\n")
    assert "Drafting: " in run(shlex.split(generate.replace("\\\n", " ") + " --max-tokens 20"), tmp_path)


@pytest.mark.planted
def test_a_command_that_is_wrong_is_found(tmp_path: Path) -> None:
    _, generate = blocks("README.md", "bash")
    with pytest.raises(AssertionError, match="invalid choice: 'automatic'"):
        run(shlex.split(generate.replace("\\\n", " ").replace("auto", "automatic")), tmp_path)


def test_the_python_of_the_readme(tmp_path: Path, fixture: tuple[object, object]) -> None:
    [code] = blocks("README.md", "python")
    *text, stats = run([sys.executable, "-c", code], tmp_path).rpartition("DraftStats(")
    prompt = "Repeat this twice: one, two, three, four, five."
    assert text[0] == "".join(response.text for response in stream_generate(*fixture, prompt))
    assert "strategy='EditStrategy'" in stats


def test_the_command_of_the_server() -> None:
    [block] = [block for block in blocks("mlx_lm/SERVER.md", "shell") if "--draft-type" in block]
    command, flag, model, *rest = shlex.split(block)
    assert (command, flag, model) == ("mlx_lm.server", "--model", str(FIXTURE))
    with serve(*rest) as server:
        usage = server.post({"messages": PROMPTS["rename"], "max_tokens": 40}).json()["usage"]
    assert usage["completion_tokens_details"]["draft"]["accepted"] > 0


def test_the_first_patches_have_nothing_to_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """scripts/apply.sh --stage fixes installs a package without prompt lookup, and the demo says so, not an error."""
    monkeypatch.setattr(demo, "stream_generate", lambda model, tokenizer, prompt, max_tokens: None)
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() == 0
    assert "has no prompt lookup to show" in capsys.readouterr().out


def unknown_options(text: str, folder: Path) -> set[str]:
    """The options of drafting that a text about the server names, but the server lacks."""
    said = run([sys.executable, "-m", "mlx_lm.server", "--help"], folder)
    return set(re.findall(r"--[a-z-]*draft[a-z-]*", text)) - set(re.findall(r"--[a-z-]+", said))


def test_the_server_has_the_options_that_its_document_names(tmp_path: Path) -> None:
    text = (checkout() / "mlx_lm" / "SERVER.md").read_text()
    assert unknown_options(text, tmp_path) == set()
    assert unknown_options(text + "`--draft-concurrency`", tmp_path) == {"--draft-concurrency"}
