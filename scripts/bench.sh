#!/usr/bin/env bash
# usage: scripts/bench.sh [-h] [--quick] [--stages NAME...] [--render]
#
# Make the tables of docs/benchmarks.md and docs/use.md that time the fixture, and the picture, in at most 90 minutes on
# two cores. Leave the machine alone while it runs. scripts/report.sh measures another model, or another machine.
#
#   scripts/bench.sh                      measure with the model of this repository
#   scripts/bench.sh --quick              small settings, at most 3 minutes: shows that it works, checks no times
#   scripts/bench.sh --stages serving     one stage again: blocks, workloads or serving
#   scripts/bench.sh --render             measure nothing; write the tables and the picture again
#
# Each stage writes its results into a CSV file of docs/benchmarks.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
"$here/apply.sh" --no-install
exec "$here/tox.sh" -e bench -- "$@"
