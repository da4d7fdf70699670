#!/usr/bin/env bash
# Runs the tests with real processes repeatedly on a busy machine, to find rare failures. Stops at the first one.
#
# Usage: scripts/repeat.sh N [TARGET...]      scripts/repeat.sh 20      scripts/repeat.sh 50 'multi_node failure::'
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:?how often? usage: scripts/repeat.sh N [TARGET...]}
shift
[ $# -gt 0 ] || set -- single_node multi_node memory standbys partition ssh etcd
for ((run = 1; run <= runs; run++)); do
    echo "run $run of $runs"
    scripts/busy.sh 2 scripts/run-tests.py "$@"
done
