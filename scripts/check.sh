#!/usr/bin/env bash
set -euo pipefail
usage() {
  cat <<'EOF'
usage: scripts/check.sh [-h] [pytest arguments]

Run the conformance suite on the patched default release, and the lint. The script makes what it needs: the patched
source, a venv with tox in .venv-tox, and the environments of tox.ini.

  scripts/check.sh                     all but the planted faults and the scripts (scripts/tox.sh -e selftest)
  scripts/check.sh -k parity           the tests with "parity" in their names
EOF
}
case "${1-}" in -h | --help) usage; exit 0 ;; esac

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
"$here/apply.sh" --no-install
exec "$here/tox.sh" -- "$@"
