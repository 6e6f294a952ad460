#!/usr/bin/env bash
# Make .venv if it is missing, then download and convert the model with model.py.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"
# With anything else it ends at once, in a help or an error.
case "$*" in
  "" | --4bit) [ -x "$here/../.venv/bin/mlx_lm.generate" ] || "$here/apply.sh" ;;
esac
exec "$PYTHON" "$here/model.py" "$@"
