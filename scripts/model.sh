#!/usr/bin/env bash
. "$(dirname -- "$(realpath -- "$0")")/shared.sh"
script model.py "$@"
