"""Each planted fault turns the test red that its table names, in a process with a copy of mlx_lm that has it."""

from __future__ import annotations

import shlex
from pathlib import Path

import mlx_lm
import pytest

from conformance import ROOT
from conformance.doors.programs import CONTEXT, run
from conformance.faults import Fault, faults, plant
from conformance.series.patches import commits, unpack

PACKAGE = Path(mlx_lm.__file__).parent
LIMIT = 300.0
# What the red tests import of others, and their pytest. A fork imports mlx and mlx_lm itself.
IMPORTED = "pytest hypothesis.stateful _hypothesis_pytestplugin requests rich.markdown platformdirs.unix statistics"
CONTEXT.set_forkserver_preload([*IMPORTED.split(), "transformers.models.auto.tokenization_auto"])


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the release, without the series."""
    return unpack(commits()[0], tmp_path_factory.mktemp("release")) / "mlx_lm"


@pytest.mark.planted
@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault, release: Path, tmp_path: Path) -> None:
    tree = plant(PACKAGE if fault.tree == "series" else release, tmp_path, fault)
    options = "-q -x --no-header --tb=short -p no:cacheprovider".split()
    command = ["-m", "pytest", "-o", "addopts=", *options, *shlex.split(fault.red)]
    env = {"PYTHONPATH": f"{tree}:{ROOT}:{ROOT / 'scripts'}", "MLX_DISABLE_COMPILE": "1", "CONFORMANCE_SHORTEN": "0"}
    # To look for plugins takes half a second, and no test here needs one.
    done = run(command, cwd=ROOT, env=env | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, timeout=LIMIT)
    if done.returncode != 1 or "1 failed" not in done.stdout:
        pytest.fail(f"{fault.red} is not red with the fault {fault.name!r}:\n{done.stdout[-2000:]}{done.stderr[-500:]}")
    if fault.says not in done.stdout:
        pytest.fail(f"{fault.red} does not say {fault.says!r} of the fault {fault.name!r}:\n{done.stdout[-2000:]}")
