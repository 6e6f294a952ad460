#!/usr/bin/env bash
# usage: scripts/review.sh [-h] N | DIR@REF [--against REF] | --all
#
# Review patch N, or the last commit of a branch of your clone of mlx-lm. The script prints the files and their sizes. It tests whether
#   the tests of the patch pass with it and fail without it (because of a wrong result, or only because a name is missing),
#   mlx-lm's own tests of the changed files pass as before.
#
#   scripts/review.sh 6                                  one patch: a minute or less
#   scripts/review.sh ~/mlx-lm@fix                       the last commit of a branch
#   scripts/review.sh ~/mlx-lm@fix --against main        all of its commits since it left main
#   scripts/review.sh --all                              every patch
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
case "$*" in
  --all | ?*@?*) ;;
  "" | *[!0-9]*) usage >&2; exit 2 ;;
esac
"$here/apply.sh" --no-install >&2
exec "$here/tox.sh" -e review -- "$@"
