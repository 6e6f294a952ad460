#!/usr/bin/env bash
# Run tox with these arguments, in its own venv: scripts/tox.sh -e stock
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"
cd -- "$here/.."
if [ ! -x .venv-tox/bin/tox ]; then
  "$PYTHON" -m venv .venv-tox
  .venv-tox/bin/python -m pip install --quiet --disable-pip-version-check "tox>=4.22"
fi
last=$(mktemp)
trap 'rm -f "$last"' EXIT
status=0
SAY_LAST=$last .venv-tox/bin/python -m tox run "$@" || status=$?
# tox ends with lines of its own. What a script of this folder said of an error comes after them once more.
cat "$last" >&2
exit "$status"
