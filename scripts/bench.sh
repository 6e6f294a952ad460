#!/usr/bin/env bash
set -euo pipefail
usage() {
  cat <<'EOF'
usage: scripts/bench.sh [-h] [--quick] [--model MODEL] [--merge FOLDER...] [--render] [more options]

Make the tables of docs/benchmarks.md and docs/use.md that time the fixture, and the pictures, in at most 90 minutes on
two cores. Leave the machine alone while it runs.

  scripts/bench.sh                      measure with the model of this repository
  scripts/bench.sh --quick              small settings, at most 3 minutes: shows that it works, checks no times
  scripts/bench.sh --model REPO_OR_DIR  measure another model, and keep the results of the others
  scripts/bench.sh --merge FOLDER...    add the results of other machines
  scripts/bench.sh --render             measure nothing; write the tables and the pictures again

Each stage writes its results into a CSV file of docs/benchmarks. More options are --draft-model, --draft-margin,
--stages, --repeats and --out. After a first run, see: .tox/bench/bin/python -m conformance.bench --help
EOF
}
case "${1-}" in -h | --help) usage; exit 0 ;; esac

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
"$here/apply.sh" --no-install
exec "$here/tox.sh" -e bench -- "$@"
