#!/bin/bash
# Saves its work when it is asked to end, and prints the signal.
. "${0%/*}/prelude.sh"
sleep infinity &
for signal in TERM INT HUP QUIT; do
    trap "kill %1; echo saved rank=\$RANK on $signal; exit 0" "$signal"
done
announce
wait
