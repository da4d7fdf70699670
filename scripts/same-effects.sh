#!/usr/bin/env bash
# Compares the effects of all coordinators in simulated jobs between a commit and the working tree, for changes that must change nothing.
#
# Usage: scripts/same-effects.sh COMMIT        SEEDS=2000 scripts/same-effects.sh HEAD
#
# Prints the kinds of jobs whose effects differ, if there are any. The commit must have this script.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=${1:?which commit? usage: scripts/same-effects.sh COMMIT}
export SEEDS=${SEEDS:-100}
traces() {
    cargo test --quiet -p ragent-tests --profile simulation --locked --test simulation -- --ignored --nocapture effects_are_traced |
        grep -E ' [0-9a-f]{16}$'
}

before=target/effects/$(git rev-parse "$commit").$SEEDS
if [ ! -s "$before" ]; then
    tree=$(mktemp -d)
    trap 'git worktree remove --force "$tree"' EXIT
    git worktree add --quiet --detach "$tree" "$commit"
    mkdir -p target/effects
    (cd "$tree" && CARGO_TARGET_DIR="$OLDPWD/target/effects/build" traces) >"$before.new"
    mv "$before.new" "$before"
fi
traces | diff "$before" - && echo "the effects of $SEEDS seeds of each kind are the same"
