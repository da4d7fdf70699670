#!/bin/bash
# Asks the store of its round for an echo, as PyTorch does, and fails unless it answers.
. "${0%/*}/prelude.sh"
announce
exec 3<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT" || exit 1
printf '\x00\xce\xf7\x85\x3c\x0decho' >&3
[ "$(head -c 4 <&3)" = echo ] && echo "reached $MASTER_ADDR by rank=$RANK"
