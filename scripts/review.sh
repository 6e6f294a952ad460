#!/usr/bin/env bash
# usage: scripts/review.sh [-h] N
#
# Review patch N of the series: the files that it changes, and what its tests say with it and without it, where they have to fail
# (because of a wrong result, or only because a name is missing). scripts/tox.sh -e series tests every patch.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
case "$*" in
  "" | *[!0-9]* | 0*) usage >&2; exit 2 ;;
esac
patch=$(sed -n "$1p" "$here/../patches/series")
[ -n "$patch" ] || { echo "error: the series has $(grep -c . "$here/../patches/series") patches." >&2; exit 2; }
git -C "$here/.." apply --stat "$here/../patches/$patch"
test="test_a_patch_passes_its_tests_which_fail_without_it[${patch%.patch}]"
exec "$here/tox.sh" -e series -- -rP "conformance/repository/test_series.py::$test"
