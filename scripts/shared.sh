# shellcheck shell=bash
# The other scripts source this, also where they are started through a link.
set -euo pipefail
here=$(cd -- "$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")" && pwd)

# The comment at the top of a script is its help.
usage() { sed -n -e '1d' -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"; }
help_asked() { case "${1-}" in -h | --help) usage && exit 0 ;; esac; }

# Set PYTHON to a Python >= 3.11, or stop with an error.
find_python() {
  for PYTHON in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
  done
  echo "error: Python 3.11 or newer was not found; install it, or name it with PYTHON=/path/to/python3." >&2
  exit 1
}

# Go on as a script of this folder in Python.
script() {
  find_python
  exec "$PYTHON" "$here/$1" "${@:2}"
}
