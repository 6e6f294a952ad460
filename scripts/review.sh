#!/usr/bin/env bash
set -euo pipefail
usage() {
  cat <<'EOF'
usage: scripts/review.sh [-h] N | DIR@REF [--against REF] | --all

Review patch N of the series, or the last commit of a ref of a clone of mlx-lm. Prints its size, its files and the
public names that it adds, removes and changes. Then checks that
  the tree with the patch builds a wheel,
  its own tests pass with it and fail without it (with a wrong result, or for want of a name),
  the tests of mlx-lm that import what it changes have no new failure.

  scripts/review.sh 6                                  one patch: a minute or less
  scripts/review.sh ~/mlx-lm@fix                       the last commit of a branch
  scripts/review.sh ~/mlx-lm@fix --against main        all of its commits since it left main
  scripts/review.sh --all                              every patch
EOF
}
case "$*" in
  -h | --help) usage; exit 0 ;;
  --all | ?*@?*) ;;
  "" | *[!0-9]*) usage >&2; exit 2 ;;
esac

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
"$here/apply.sh" --no-install >&2
exec "$here/tox.sh" -e review -- "$@"
