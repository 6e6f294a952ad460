#!/usr/bin/env bash
# The command is judge.py; this finds a Python to run it with.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"
exec "$PYTHON" "$here/judge.py" "$@"
