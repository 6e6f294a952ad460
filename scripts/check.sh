#!/usr/bin/env bash
# usage: scripts/check.sh [-h] [--stage NAME | --tree TREE] [pytest arguments]
#        scripts/check.sh --model smollm2 [options of python -m conformance check]
#
# Run the tests on the patched default release of mlx-lm, and the lint, in 4 to 7 minutes alone on two cores. The script makes
# what it needs: the patched source, a venv with tox in .venv-tox, and the environments of tox.ini.
#
#   scripts/check.sh                     all tests but those of the suite and the scripts (scripts/tox.sh -e selftest)
#   scripts/check.sh -k parity           the tests with "parity" in their names, without the lint
#   scripts/check.sh --stage core        the patches up to the end of a stage, and the tests that pass there
#   scripts/check.sh --tree 0.33.0       a release, a directory or DIRECTORY@REF as it is, without the patches
#   scripts/check.sh --model smollm2     is a real model decoded exactly, in bf16 and in 4 bits? (docs/use.md: the exit status)
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
help_asked "$@"
case "${1-}" in
  --stage)
    export STAGE=${2-}
    shift $(($# < 2 ? $# : 2))
    "$here/apply.sh" --no-install --stage "$STAGE"
    exec "$here/tox.sh" -e stage -- "$@"
    ;;
  --tree)
    export TREE=${2-}
    where=${TREE%%@*}
    # From the folder where it is named.
    if [ -d "$where" ]; then TREE=$(cd -- "$where" && pwd)${TREE#"$where"}; fi
    shift $(($# < 2 ? $# : 2))
    exec "$here/tox.sh" -e tree -- "$@"
    ;;
  --model)
    [ "${2-}" = smollm2 ] || { echo "error: --model takes smollm2, the model of scripts/model.sh." >&2; exit 2; }
    shift 2
    "$here/apply.sh"
    "$here/model.sh"
    "$here/model.sh" --4bit
    root=$(dirname -- "$here") worst=0
    for model in smollm2 smollm2-4bit; do
      status=0
      PYTHONPATH=$root "$root/.venv/bin/python" -m conformance check --model "$model" "$@" || status=$?
      [ "$status" -le "$worst" ] || worst=$status
    done
    exit "$worst"
    ;;
esac
"$here/apply.sh" --no-install
[ $# = 0 ] && exec "$here/tox.sh"
exec "$here/tox.sh" -e patched -- "$@"
