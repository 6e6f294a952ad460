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
exec .venv-tox/bin/python -m tox run "$@"
