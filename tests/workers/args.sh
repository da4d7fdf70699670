#!/bin/bash
# Prints its arguments, one a line; the first attempt fails if FAILS is set.
. "${0%/*}/prelude.sh"
for arg in "$@"; do echo "arg rank=$RANK restart=$TORCHELASTIC_RESTART_COUNT $arg"; done
if [ -n "${FAILS:-}" ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then exit 1; fi
