"""Contradictory options are errors before a model is loaded."""

from __future__ import annotations

import shlex
import sys

import pytest

from conformance import FIXTURE
from conformance.doors.commands import COMMANDS, module_of

WEIGHTS = shlex.quote(str(FIXTURE / "model.safetensors"))
LOOKUP = "--prompt-lookup-num-tokens"
# The options that a user types, and the words that the error has to name.
CONTRADICTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "generate": {
        f"{LOOKUP} 8 --draft-model nowhere/nothing": (LOOKUP, "--draft-model"),
        "--draft-type auto --draft-model nowhere/nothing": ("--draft-type", "--draft-model"),
        "--draft-type auto --image no.png": ("--draft-type", "--image"),
        f"--draft-type auto {LOOKUP} 8": (LOOKUP, "--draft-type"),
        f"{LOOKUP} 8 --num-draft-tokens 3": (LOOKUP, "--num-draft-tokens"),
        f"{LOOKUP} -1": (LOOKUP, "from 0 to"),
        "--draft-type suffix --ngram-size 3": ("--ngram-size", "--draft-type", "suffix"),
        "--draft-type auto --draft-margin 1 --temp 0.5": ("--draft-margin", "--temp"),
        "--draft-memory memory": ("--draft-memory", "ngram-mod"),
        "--draft-type auto --draft-reference no.txt": ("--draft-reference", "no.txt"),
        f"--draft-type auto --draft-reference {WEIGHTS}": ("--draft-reference", "utf-8"),
        "--ngram-size 3": ("--ngram-size", "--draft-type"),
        "--draft-margin 0.5": ("--draft-margin", "--draft-type"),
    },
    "chat": {
        "--draft-type suffix --ngram-size 3": ("--ngram-size", "--draft-type", "suffix"),
        "--draft-type auto --draft-memory memory": ("--draft-memory", "ngram-mod"),
        "--draft-type auto --draft-model nowhere/nothing": ("--draft-type", "--draft-model"),
        f"--draft-model nowhere/nothing --draft-reference {shlex.quote(__file__)}": (
            "--draft-model",
            "--draft-reference",
        ),
    },
    "benchmark": {
        "--draft-type auto --batch-size 2": ("--draft-type", "--batch-size"),
        f"{LOOKUP} 8 --batch-size 2": ("--draft-type and its short form", "--batch-size"),
    },
    "server": {
        "--draft-type auto --draft-model nowhere/nothing": ("--draft-type", "--draft-model"),
    },
}


@pytest.mark.parametrize("command", COMMANDS)
def test_contradictions_are_errors_before_a_model_is_loaded(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = module_of(command)
    for typed, named in CONTRADICTIONS[command].items():
        monkeypatch.setattr(sys, "argv", [f"mlx_lm.{command}", "--model", "nowhere/nothing", *shlex.split(typed)])
        with pytest.raises(SystemExit) as ended:
            module.main()
        error = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2
        assert all(name in error for name in named), f"{typed}: {error}"
