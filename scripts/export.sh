#!/usr/bin/env bash
# Find a Python, and run export.py with it.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/python.sh
. "$here/python.sh"
exec "$PYTHON" "$here/export.py" "$@"
