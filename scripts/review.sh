#!/usr/bin/env bash
# usage: scripts/review.sh [-h] N | --all
#
# Review patch N of the series, in about 3 minutes, or every patch. The script prints the files and their sizes. It tests whether
#   the tests of the patch pass with it and fail without it (because of a wrong result, or only because a name is missing),
#   mlx-lm's own tests of the changed files pass as before.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
case "$*" in
  --all) ;;
  "" | *[!0-9]*) usage >&2; exit 2 ;;
esac
"$here/apply.sh" --no-install >&2
exec "$here/tox.sh" -e review -- "$@"
