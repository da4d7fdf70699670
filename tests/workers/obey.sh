#!/bin/bash
# Runs the orders that it reads, line by line, from the pipe $SCRATCH/orders.$RANK.
. "${0%/*}/prelude.sh"
announce
exec 8<>"$SCRATCH/orders.$RANK"
# A signal just before `read` starts to wait does not interrupt it. The trap runs after the timeout, which may cut a
# line in two.
line=
while :; do
    if read -r -t 0.5 order <&8; then
        order=$line$order line=
        eval "$order"
    else
        line+=$order
    fi
done
