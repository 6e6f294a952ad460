# shellcheck shell=bash
# The other scripts source this. It sets PYTHON to a Python >= 3.11, or stops with an error.
for PYTHON in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
  if "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    break
  fi
  PYTHON=
done
if [ -z "$PYTHON" ]; then
  echo "error: Python 3.11 or newer was not found; install it, or name it with PYTHON=/path/to/python3." >&2
  exit 1
fi
