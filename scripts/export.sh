#!/usr/bin/env bash
# Find a Python, and run export.py with it.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
script export.py "$@"
