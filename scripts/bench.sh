#!/usr/bin/env bash
set -euo pipefail
usage() {
  cat <<'EOF'
usage: scripts/bench.sh [-h] [--quick] [--model MODEL] [--merge FILE...] [--check] [--render] [more options]

Make every number, table and picture of docs/benchmarks.md and docs/serving.md, and the pictures of the README, in at most
90 minutes on two cores. Leave the machine alone while it runs.

  scripts/bench.sh                      measure with the model of this repository
  scripts/bench.sh --quick              small settings, at most 3 minutes; shows that all works, judges no times
  scripts/bench.sh --model REPO_OR_DIR  measure another model, beside the results that are there
  scripts/bench.sh --merge FILE...      take over the results.json of other machines
  scripts/bench.sh --render             measure nothing, write tables, pictures and the page again
  scripts/bench.sh --check              fail if a table is not that of docs/benchmarks/results.json

What was measured is in docs/benchmarks/results.json, after each stage. The peers are installed in vendor/bench.
With --draft-model, --draft-margin, --stages, --repeats and --out, after a first run, see:
  .tox/bench/bin/python -m conformance.bench --help
EOF
}
case "${1-}" in -h | --help) usage; exit 0 ;; esac

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"
root=$(dirname -- "$here")
cd -- "$root"
"$here/apply.sh" --no-install
if [ ! -x .venv-tox/bin/tox ]; then
  "$PYTHON" -m venv .venv-tox
  .venv-tox/bin/python -m pip install --quiet --disable-pip-version-check "tox>=4.22"
fi
exec .venv-tox/bin/python -m tox run -e bench -- "$@"
