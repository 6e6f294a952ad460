#!/usr/bin/env bash
# Run tox with these arguments, in its own venv: scripts/tox.sh -e stock
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"
cd -- "$here/.."
if [ ! -x .venv-tox/bin/tox ]; then
  if ! { "$PYTHON" -m venv .venv-tox && .venv-tox/bin/python -m pip install -qq --disable-pip-version-check "tox>=4.22"; }; then
    echo "error: tox could not be installed: is the network there? Then run the same command again." >&2
    exit 1
  fi
fi
last=$(mktemp)
trap 'rm -f "$last"' EXIT
status=0
SAY_LAST=$last .venv-tox/bin/python -m tox run "$@" || status=$?
# tox ends with lines of its own. What a script of this folder said of an error comes after them once more.
cat "$last" >&2
exit "$status"
