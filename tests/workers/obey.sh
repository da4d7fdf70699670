#!/bin/bash
# Does what it is told, line by line, through the pipe $SCRATCH/orders.$RANK.
. "${0%/*}/prelude.sh"
announce
exec 8<>"$SCRATCH/orders.$RANK"
# A signal that comes just before `read` waits does not end it; its trap runs when the time is over.
while :; do
    if read -r -t 0.5 order <&8; then eval "$order"; fi
done
