#!/usr/bin/env bash
# usage: scripts/report.sh --model MODEL [--device cpu|gpu] [--minutes N] [--json FILE] | -h
#
# Report how this machine decodes a model: the chip and the versions, whether drafting is exact, plain tokens a second, the
# speed of six short workloads, and the cost of blocks of tokens by length. It begins no part after N minutes, 20 by default:
# the workloads of smollm2 alone take 11 on two cores.
#
# It prints what it finds and writes it to report-MODEL.json, without the name of the machine and without a path. It runs in
# .venv, which scripts/apply.sh makes if it is missing. PYTHON can name another Python that has the wheel.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
[ $# != 0 ] || { usage >&2; exit 2; }
root=$(dirname -- "$here")
if [ -z "${PYTHON-}" ]; then
  PYTHON=$root/.venv/bin/python
  [ -x "$PYTHON" ] || "$here/apply.sh"
fi
find_python
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m conformance report "$@"
