#!/usr/bin/env bash
# Find a Python, and run judge.py with it.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
script judge.py "$@"
