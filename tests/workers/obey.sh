#!/bin/bash
# Does what it is told, line by line, through the pipe $SCRATCH/orders.$RANK.
. "${0%/*}/prelude.sh"
announce
exec 8<>"$SCRATCH/orders.$RANK"
while read -r order <&8; do eval "$order"; done
