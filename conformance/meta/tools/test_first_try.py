"""What somebody tries first: --help of every command, and a model that is none."""

from __future__ import annotations

import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import mlx_lm.chat
import pytest

from conformance import FIXTURE, ROOT
from conformance.lab.demo import __main__ as demo
from conformance.lab.demo import picture

# It runs in an environment that has PyTorch, which the suite has not.
WITH_TORCH = {"conformance.lab.train_fixture"}
ASKED = ("conformance check", "conformance probe", "conformance report")


# A picture has ids and places beside its text.
TAGS = re.compile(r"<style>.*?</style>|<[^>]*>", re.DOTALL)


def commands() -> list[str]:
    """The modules that python -m can run."""
    files = (ROOT / "conformance").rglob("*.py")
    found = [path for path in files if '__name__ == "__main__"' in path.read_text("utf-8") and "test_" not in path.name]
    names = (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in found)
    return sorted({name.removesuffix(".__main__") for name in names} - WITH_TORCH)


def told(command: str, *arguments: str) -> int:
    """Run a command in this process, and return its exit status."""
    module, *first = command.split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *first, *arguments])
        # A module that replaces it is to leave the next test the real one.
        patch.setattr(mlx_lm.chat, "stream_generate", mlx_lm.chat.stream_generate)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    return int(ended.value.code or 0)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("command", [*commands(), *ASKED])
def test_help_is_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(command, "--help") == 0
    said = capsys.readouterr()
    assert (said.out[:6], said.err) == ("usage:", "")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("command", [*ASKED, "conformance.lab.demo"])
def test_a_model_that_is_none_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "config.json").write_text("{}")
    (strange / "model.safetensors").write_bytes((FIXTURE / "model.safetensors").read_bytes())
    (tmp_path / "a file").touch()
    (tmp_path / "a folder").mkdir()
    (tmp_path / "untold").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "untold" / name).write_bytes((FIXTURE / name).read_bytes())
    for model in ("strange", "a file", "a folder", "nowhere/nothing", "untold"):
        assert told(command, "--model", model) not in (0, 1)
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert model in line
        assert ("there is no tokenizer in it" in line) == (model == "untold")
        assert said.out == ""


MODELS = [f"{tool} --model any" for tool in (*ASKED, "conformance.lab.demo")]


@pytest.mark.parametrize("command", [*MODELS, "conformance.lab.simulate", *WITH_TORCH])
def test_a_python_without_packages_is_one_sentence(command: str) -> None:
    # With -S Python does not see the packages that are installed.
    run = [sys.executable, "-S", "-m", *command.split()]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert "scripts/apply.sh makes .venv/bin/python" in line or "which this command needs" in line
    # 0, 1 and 2 are answers of check.
    assert done.returncode == (3 if command.startswith("conformance ") else 1)


def test_an_mlx_lm_without_drafts_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mlx_lm").mkdir()
    (tmp_path / "mlx_lm" / "__init__.py").touch()
    run = [sys.executable, "-S", "-m", "conformance.lab.simulate"]
    done = subprocess.run(run, cwd=ROOT, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert "this mlx-lm has no prompt lookup" in line


def test_ctrl_c_is_no_traceback() -> None:
    planted = "import sys; sys.argv[0] = '-m'; import conformance; raise KeyboardInterrupt"
    done = subprocess.run([sys.executable, "-S", "-c", planted], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_module_of_the_suite_that_is_missing_keeps_its_traceback() -> None:
    planted = "import sys; sys.argv[0] = '-m'; import conformance; import conformance.no_such_module"
    done = subprocess.run([sys.executable, "-S", "-c", planted], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" in done.stderr


def test_the_picture_is_what_its_command_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> str:
        return TAGS.sub("", picture.picture())

    kept = TAGS.sub("", (ROOT / "docs" / "drafts.svg").read_text("utf-8"))
    assert drawn() == kept
    assert "print(count)" in kept
    monkeypatch.setattr(picture, "QUESTION", picture.QUESTION.replace("total", "sum"))
    assert drawn() != kept


def test_an_mlx_lm_without_prompt_lookup_has_nothing_to_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """scripts/apply.sh --stage fixes installs one. The demo says so, not an error."""
    monkeypatch.setattr(demo, "stream_generate", lambda model, tokenizer, prompt, max_tokens: None)
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() == 0
    assert "has no prompt lookup to show" in capsys.readouterr().out
