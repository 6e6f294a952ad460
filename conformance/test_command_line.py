"""`mlx_lm.generate` as a user types it: pytest conformance/test_command_line.py"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conformance.demo import FIXTURE
from conformance.prompts import PROMPTS

COMMAND = Path(sys.executable).parent / "mlx_lm.generate"


def generate(*args: str) -> subprocess.CompletedProcess[str]:
    prompt = PROMPTS["rename"][0]["content"]
    command = [str(COMMAND), "--model", str(FIXTURE), "--max-tokens", "200", "--prompt", prompt, *args]
    return subprocess.run(command, capture_output=True, text=True)


def text(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.split("==========\n")[1]


def test_the_flag_changes_the_speed_only() -> None:
    right, got = generate(), generate("--prompt-lookup-num-tokens", "8")
    assert text(got) == text(right)
    assert "Drafting" not in right.stdout
    line = re.search(
        r"Drafting: SuffixStrategy, (\d+) tokens drafted, (\d+) accepted, ([\d.]+) tokens-per-forward", got.stdout
    )
    assert line, got.stdout
    assert int(line[1]) >= int(line[2]) > 0
    assert float(line[3]) > 1.5


def test_contradictions_are_errors_before_a_model_is_loaded() -> None:
    done = generate("--prompt-lookup-num-tokens", "8", "--draft-model", "nowhere/nothing")
    assert done.returncode == 2
    assert "--draft-model" in done.stderr
    done = generate("--prompt-lookup-num-tokens", "0")
    assert done.returncode == 2
    assert "at least 1" in done.stderr
