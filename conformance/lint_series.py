"""Check the files that the series touches with upstream's formatters and upstream's ruff rules.

python conformance/lint_series.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent / "vendor" / "mlx-lm-0.32.2"


def changed_files() -> list[str]:
    git = ["git", "-C", str(CHECKOUT)]
    base = subprocess.run([*git, "rev-list", "--max-parents=0", "HEAD"], capture_output=True, text=True, check=True)
    names = [*git, "diff", "--name-only", "--diff-filter=d", base.stdout.strip(), "HEAD", "--", "*.py"]
    return subprocess.run(names, capture_output=True, text=True, check=True).stdout.split()


def main() -> int:
    files = changed_files()
    # CPY001, the copyright header, is a preview rule of ruff.
    checks = [["black", "--check"], ["isort", "--profile=black", "--check"], ["ruff", "check", "--preview"]]
    failed = [check[0] for check in checks if subprocess.run([*check, *files], cwd=CHECKOUT).returncode]
    print(f"{len(files)} files of the series: {', '.join(failed) + ' failed' if failed else 'formatted and linted'}")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
