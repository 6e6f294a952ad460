#!/usr/bin/env bash
# Find a Python, and run port.py with it.
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
script port.py "$@"
