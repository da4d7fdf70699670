#!/usr/bin/env bash
# Runs a command beside N busy loops, to find tests that depend on the speed of the machine.
#
# Usage: scripts/busy.sh N COMMAND [ARGUMENT...]      scripts/busy.sh 4 make test
set -euo pipefail

loops=${1:?how many loops? usage: scripts/busy.sh N COMMAND [ARGUMENT...]}
shift
pids=()
# Only processes started here, by their pid.
trap '[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for ((loop = 0; loop < loops; loop++)); do
    (while :; do :; done) &
    pids+=($!)
done
"$@"
