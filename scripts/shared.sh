# shellcheck shell=bash
# The other scripts source this, also where they are started through a link, or by another shell (sh scripts/apply.sh).
# zsh calls the file that it reads $0.
[ -n "${BASH_VERSION-}" ] || exec bash "${ZSH_ARGZERO:-$0}" "$@"
set -euo pipefail
here=$(cd -- "$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")" && pwd)

# The comment at the top of a script is its help.
usage() { sed -n -e '1d' -e '/^#/!q' -e 's/^# \{0,1\}//p' "$0"; }
help_asked() { case "${1-}" in -h | --help) usage && exit 0 ;; esac; }

# Set PYTHON to a Python >= 3.11, or stop with an error. One that the user names is the only one.
find_python() {
  local tried=("${PYTHON:-python3}")
  [ -n "${PYTHON-}" ] || tried+=(python3.14 python3.13 python3.12 python3.11)
  for PYTHON in "${tried[@]}"; do
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
  done
  echo "error: this is no Python 3.11 or newer: ${tried[*]}. Name one with PYTHON=/path/to/python3." >&2
  exit 1
}

# Go on as a script of this folder in Python.
script() {
  find_python
  exec "$PYTHON" "$here/$1" "${@:2}"
}
