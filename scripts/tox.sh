#!/usr/bin/env bash
# Run tox with these arguments, in its own venv: scripts/tox.sh -e stock
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
cd -- "$here/.."
find_python
if [ ! -x .venv-tox/bin/tox ] && ! { "$PYTHON" -m venv .venv-tox &&
  .venv-tox/bin/python -m pip install -qq --disable-pip-version-check "tox>=4.22"; }; then
  echo "error: tox could not be installed: is the network there? Then run the same command again." >&2
  exit 1
fi
exec .venv-tox/bin/python -m tox run "$@"
