#!/usr/bin/env bash
# Find a Python, and run apply.py with it.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
script apply.py "$@"
