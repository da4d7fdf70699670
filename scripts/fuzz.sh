#!/usr/bin/env bash
# Fuzzes each part of the store and of the agent for a number of seconds, starting with the committed corpus.
#
# Usage: scripts/fuzz.sh SECONDS [TARGET...]      scripts/fuzz.sh 60      scripts/fuzz.sh 600 session port
#
# New inputs are kept in store/fuzz/found and agent/fuzz/found, failures in store/fuzz/artifacts and agent/fuzz/artifacts. The
# command that repeats a failure is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:?how long? usage: scripts/fuzz.sh SECONDS [TARGET...]}
shift
if [ $# -eq 0 ]; then
    for file in {store,agent}/fuzz/fuzz_targets/*.rs; do
        set -- "$@" "$(basename "$file" .rs)"
    done
fi

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo 'cannot fuzz: no nightly toolchain (rustup toolchain install nightly)' >&2
    exit 1
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo 'cannot fuzz: cargo-fuzz is not installed (cargo install --locked cargo-fuzz)' >&2
    exit 1
fi

for target in "$@"; do
    crate=store max_len=700
    # Certificates and requests are longer than requests to a store.
    [ -e "store/fuzz/fuzz_targets/$target.rs" ] || crate=agent max_len=4096
    mkdir -p "$crate/fuzz/found/$target"
    echo "$target: $seconds s"
    # Short inputs never need much memory: a single allocation of 64 MiB is a failure.
    (
        cd "$crate"
        cargo +nightly fuzz run --fuzz-dir fuzz "$target" "fuzz/found/$target" "fuzz/corpus/$target" -- \
            -max_total_time="$seconds" -max_len=$max_len -malloc_limit_mb=64 -timeout=20 -verbosity=0 \
            -print_final_stats=1
    )
done
