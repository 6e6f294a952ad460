#!/usr/bin/env bash
# Find a Python, and run apply.py with it.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"
exec "$PYTHON" "$here/apply.py" "$@"
