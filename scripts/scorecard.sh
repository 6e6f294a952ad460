#!/usr/bin/env bash
# usage: scripts/scorecard.sh [-h] [ENVIRONMENT...]
#
# Run the suite in environments of tox.ini, say what is wrong, and write the table of docs/releases.md. The results of other
# environments stay.
#
#   scripts/scorecard.sh                  all releases, with and without the series, and the tests of the suite itself: an hour
#   scripts/scorecard.sh patched stock    the default release
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
case "${1-}" in -*) usage >&2; exit 2 ;; esac
cd -- "$here/.."
status=0
[ $# != 0 ] || { "$here/tox.sh" -m matrix || status=$?; set -- selftest; }
"$here/tox.sh" -e "$(IFS=, && echo "$*")" || status=$?
shopt -s nullglob
results=(.tox/scorecards/{patched,stock,selftest}*.jsonl)
# In the bash of macOS an empty array is no variable that is set.
if [ -z "${results[*]+there}" ]; then
  echo "error: no environment ran, so nothing was written; the lines above say why." >&2
  exit 1
fi
find_python
"$PYTHON" -m conformance.scorecard docs/releases.md "${results[@]}"
exit "$status"
