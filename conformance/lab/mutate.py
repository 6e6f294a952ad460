"""Change one expression of the drafting code at a time, and show each change that no test of the series finds.

scripts/tox.sh -e mutation -- draft/best draft/suffix    # these files of mlx_lm, in a few minutes
scripts/tox.sh -e mutation                               # mlx_lm/draft, prefixes and grammar, in hours

A run that was broken off is gone on with: .tox/mutated has what was found. Not each change that is shown needs a test.
Some change nothing, and some only how long a draft is.
"""

from __future__ import annotations

import os
import subprocess
import sys

from conformance import ROOT
from conformance.arguments import parser
from conformance.series.patches import commits, unpack
from conformance.series.trees import SETTINGS

FOLDER = ROOT / ".tox" / "mutated"
FILES = ("mlx_lm/draft/*.py", "mlx_lm/prefixes.py", "mlx_lm/grammar.py")
# Tests that need no server, no text of the checkout's pages and no model of the hub.
TESTS = ("test_draft_*.py", "test_checkpoint*.py", "test_grammar.py")
WITHOUT = "not TestDraftDocs and not TestGrammarArguments"
# Without plugins pytest starts faster, which it does for each change.
ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **SETTINGS}
# The first table keeps pytest from reading that of this repository.
CONFIG = """\
[tool.pytest.ini_options]

[tool.mutmut]
source_paths = ["mlx_lm"]
only_mutate = {files}
pytest_add_cli_args = ["-q", "-k", "{without}"]
pytest_add_cli_args_test_selection = {tests}
process_isolation = "forkserver"
"""


def mutmut(*arguments: str, output: int | None = None) -> str:
    """What a command of mutmut says, if its output is a pipe."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=FOLDER, env=os.environ | ENV, check=True, stdout=output, text=True)
    return done.stdout or ""


def main(names: list[str]) -> None:
    unpack(commits()[-1], FOLDER)
    files = [f"mlx_lm/{name}.py" for name in names] or list(FILES)
    tests = [path.relative_to(FOLDER).as_posix() for glob in TESTS for path in sorted(FOLDER.glob(f"tests/{glob}"))]
    (FOLDER / "pyproject.toml").write_text(CONFIG.format(files=files, tests=tests, without=WITHOUT), "utf-8")
    mutmut("run")
    results = [line.split() for line in mutmut("results", "--all", "true", output=subprocess.PIPE).splitlines()]
    left = [name.removesuffix(":") for name, *result in results if result not in (["killed"], ["timeout"])]
    for name in left:
        mutmut("show", name)
    print(f"{len(results) - len(left)} of {len(results)} changes are found")


if __name__ == "__main__":
    asked = parser(__doc__)
    asked.add_argument("file", nargs="*")
    main(asked.parse_args().file)
