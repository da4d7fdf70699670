#!/usr/bin/env bash
# Runs the tests with real processes repeatedly on a busy machine, to find rare failures.
#
# Usage: scripts/repeat.sh N [TEST...]      scripts/repeat.sh 20      scripts/repeat.sh 50 multi_node
#
# Builds once, then runs the test binaries N times next to two processes that only use CPU time.
# Stops at the first failure and prints the name of the test, with all of its output.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:?how often? usage: scripts/repeat.sh N [TEST...]}
shift
[ $# -gt 0 ] || set -- single_node multi_node memory standbys partition ssh etcd

folder=$(mktemp -d)
hogs=()
end() {
    # Only processes started here, by their pid.
    [ ${#hogs[@]} -eq 0 ] || kill "${hogs[@]}" 2>/dev/null || true
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

binaries=()
for test in "$@"; do
    # The path is in the messages of Cargo: "executable":"…/ssh-0123456789abcdef".
    cargo test --workspace --locked --test "$test" --no-run --message-format json >"$folder/built"
    binaries+=("$(sed -n 's/.*"name":"'"$test"'".*"executable":"\([^"]*\)".*/\1/p' "$folder/built")")
done

for _ in 1 2; do
    (while :; do :; done) &
    hogs+=($!)
done

for ((run = 1; run <= runs; run++)); do
    for binary in "${binaries[@]}"; do
        name=$(basename "$binary")
        if (cd agent && RUST_BACKTRACE=0 "$binary") >"$folder/output" 2>&1; then
            echo "run $run of $runs: ${name%-*}: $(grep '^test result' "$folder/output")"
        else
            sed -n '/^failures:$/,$p' "$folder/output"
            echo "run $run of $runs failed: ${name%-*}: $(grep -c FAILED$ "$folder/output") test(s)"
            exit 1
        fi
    done
done
