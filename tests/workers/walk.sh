#!/bin/bash
# Writes a training step to stderr at intervals until it is killed.
. "${0%/*}/prelude.sh"
announce
for ((step = 1; ; step++)); do
    echo "step: $step" >&2
    sleep 0.1
done
