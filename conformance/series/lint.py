"""Check the files that the series touches with the linters of upstream: python -m conformance.series.lint"""

from __future__ import annotations

import subprocess
import sys

from conformance.arguments import parser
from conformance.series.patches import checkout, commits, git

# CPY001, the copyright header, is a preview rule of ruff.
CHECKS = (["black", "--check"], ["isort", "--profile=black", "--check"], ["ruff", "check", "--preview"])

if __name__ == "__main__":
    parser(__doc__).parse_args()
    files = git("diff", "--name-only", "--diff-filter=d", commits()[0], "HEAD", "--", "*.py").decode().split()
    done = [subprocess.run([sys.executable, "-m", *check, *files], cwd=checkout()).returncode for check in CHECKS]
    print(f"{len(files)} files of the series")
    sys.exit(any(done) or not files)
