#!/usr/bin/env bash
set -euo pipefail
usage() {
  cat <<'EOF'
usage: scripts/review.sh [-h] N | DIR@REF [--against REF] | --all

Review patch N of the series, or the last commit of a ref of a clone of mlx-lm. It prints the size and the files, and the public
names that the patch adds, removes and changes. It says whether
  the series up to the patch builds a wheel,
  the patch's own tests pass with it and fail without it, and if they fail with a wrong result or because a name is missing,
  mlx-lm's own tests of what it changes fail nothing more than without it.

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
