#!/usr/bin/env bash
# Make .venv if it is missing, then download and convert the model with model.py.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
# With anything else it ends at once, in a help or an error.
case "$*" in
  "" | --4bit) [ -x "$here/../.venv/bin/mlx_lm.generate" ] || "$here/apply.sh" ;;
esac
script model.py "$@"
