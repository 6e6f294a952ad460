"""Check the files that the series touches with upstream's formatters and upstream's ruff rules.

python -m conformance.series.lint
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from conformance.series.patches import checkout, commits, git


def changed_files() -> list[str]:
    return git("diff", "--name-only", "--diff-filter=d", commits()[0], "HEAD", "--", "*.py").decode().split()


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        prog="python -m conformance.series.lint", description=__doc__, formatter_class=form
    ).parse_args()
    files = changed_files()
    # CPY001, the copyright header, is a preview rule of ruff.
    checks = [["black", "--check"], ["isort", "--profile=black", "--check"], ["ruff", "check", "--preview"]]
    failed = [
        check[0]
        for check in checks
        if subprocess.run([sys.executable, "-m", *check, *files], cwd=checkout()).returncode
    ]
    print(f"{len(files)} files of the series: {', '.join(failed) + ' failed' if failed else 'formatted and linted'}")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
