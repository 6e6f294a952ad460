#!/usr/bin/env bash
# usage: scripts/bench.sh [-h] [--quick] [--render]
#
# Make the table of docs/use.md that times a server of the fixture with several clients. Leave the machine alone while it
# runs. scripts/report.sh measures another model, or another machine.
#
#   scripts/bench.sh                      measure, and write docs/benchmarks/serving.csv and the table
#   scripts/bench.sh --quick              small settings, at most 3 minutes: shows that it works, checks no times
#   scripts/bench.sh --render             measure nothing; write the table again
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
"$here/apply.sh" --no-install
exec "$here/tox.sh" -e bench -- "$@"
