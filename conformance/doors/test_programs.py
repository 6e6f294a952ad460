"""A program in a fork behaves as one in a new process."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance.doors.programs import FOLLOWED, program, run

pytestmark = pytest.mark.selftest

TOLD = """
import os, sys
print(sys.argv, input(), os.environ["SAID"], os.getcwd(), sys.path[1:2], os.environ.get("PLANTED"))
print("an error", file=sys.stderr)
sys.exit(3)
"""
FAULT = "import os\nos.environ['PLANTED'] = 'yes'\n"


@pytest.mark.parametrize("cold", [False, True])
def test_what_it_is_given_and_what_it_prints(tmp_path: Path, cold: bool) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    env = {"SAID": "something", "PYTHONPATH": str(tmp_path)}
    done = run(["-c", TOLD, "--an", "option"], typed="a line\n", env=env, cwd=tmp_path, cold=cold)
    told = f"['-c', '--an', 'option'] a line something {tmp_path.resolve()} {[str(tmp_path)]} yes\n"
    assert (done.stdout, done.stderr, done.returncode) == (told, "an error\n", 3)


@pytest.mark.parametrize("cold", [False, True])
def test_a_module_and_how_it_fails(tmp_path: Path, cold: bool) -> None:
    (tmp_path / "failing.py").write_text('import sys\nassert __name__ == "__main__"\nraise ValueError(str(sys.argv))\n')
    done = run(["-m", "failing", "1"], cwd=tmp_path, cold=cold)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ValueError: {[str(tmp_path.resolve() / 'failing.py'), '1']}"


@pytest.mark.skipif(sys.platform == "win32", reason="its signals are others")
@pytest.mark.parametrize("cold", [False, True])
def test_one_that_is_killed(tmp_path: Path, cold: bool) -> None:
    sleeping = program(["-c", "import time; time.sleep(600)"], tmp_path / "out", cold=cold)
    assert sleeping.poll() is None
    sleeping.send_signal(signal.SIGTERM)
    assert sleeping.wait(60) == -signal.SIGTERM
    sleeping.kill()


def test_many_at_once_keep_their_statuses() -> None:
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda n: run(["-c", f"import sys; sys.exit({n})"]), range(40)))
    assert [each.returncode for each in done] == list(range(40))


@pytest.mark.skipif(sys.platform != "linux" or FOLLOWED in os.environ, reason="all are cold")
def test_a_warm_one_imports_mlx_itself() -> None:
    code = "import sys; print(*({'mlx', 'mlx_lm', 'transformers'} & {*sys.modules}))"
    assert run(["-c", code]).stdout == "transformers\n"
