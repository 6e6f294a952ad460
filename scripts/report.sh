#!/usr/bin/env bash
# usage: scripts/report.sh --model MODEL [--out FOLDER] [--device cpu|gpu] [--minutes N] | -h
#
# Report how this machine decodes a model, in about ten minutes: the chip and the versions, whether drafting is exact, the
# cost of blocks of tokens by length and by batch, plain tokens a second, and the speed of six short workloads.
#
# It writes report-MODEL-CHIP.json, and the same as a page in report-MODEL-CHIP.md, whose last line fits the table of
# docs/benchmarks.md.
#
# It runs in .venv, and scripts/apply.sh makes that if it is missing. PYTHON can name another Python that has the wheel of
# the series. The report names the model and the chip. It holds no name of the machine and no path.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
[ $# != 0 ] || { usage >&2; exit 2; }
root=$(dirname -- "$here")
if [ -z "${PYTHON-}" ]; then
  PYTHON=$root/.venv/bin/python
  [ -x "$PYTHON" ] || "$here/apply.sh"
fi
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m conformance report "$@"
