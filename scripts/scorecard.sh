#!/usr/bin/env bash
set -euo pipefail
usage() {
  cat <<'EOF'
usage: scripts/scorecard.sh [-h] [--render | ENVIRONMENT...]

Run the suite in environments of tox.ini, and write the results into docs/scorecard.json, docs/scorecard.html and the
table of docs/releases.md. The results of other environments stay as they are.

  scripts/scorecard.sh                  all releases, with and without the series, and the tests of the suite itself: 75 minutes
  scripts/scorecard.sh patched stock    the default release
  scripts/scorecard.sh --render         run nothing: use the files in .tox/scorecards
EOF
}
case "${1-}" in
  -h | --help) usage; exit 0 ;;
  --render) ;;
  -*) usage >&2; exit 2 ;;
esac

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"
cd -- "$here/.."
status=0
started=$(mktemp)
trap 'rm -f "$started"' EXIT
if [ "${1-}" = "" ]; then
  "$here/tox.sh" -m matrix || status=$?
  "$here/tox.sh" -e selftest || status=$?
elif [ "$1" != --render ]; then
  environments=$(IFS=, && echo "$*")
  "$here/tox.sh" -e "$environments" || status=$?
fi
results=()
for file in .tox/scorecards/*.json; do
  # What an earlier run left does not count as the result of this one.
  if [ -e "$file" ] && { [ "${1-}" = --render ] || [ "$file" -nt "$started" ]; }; then results+=("$file"); fi
done
if [ "${#results[@]}" = 0 ] && [ "${1-}" != --render ]; then
  echo "error: no environment ran, so nothing was written; the lines above say why." >&2
  exit 1
fi
# Without a run, what is kept is written again. In the bash of macOS an empty array is no variable that is set.
"$PYTHON" -m conformance.scorecard keep docs/scorecard.json ${results[@]+"${results[@]}"} --out docs/scorecard.json
"$PYTHON" -m conformance.scorecard page docs/scorecard.json --out docs/scorecard.html
"$PYTHON" -m conformance.scorecard table docs/scorecard.json --readme docs/releases.md
exit "$status"
