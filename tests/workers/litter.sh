#!/bin/bash
# Leaves processes behind that nobody waits for: a child in the background, one in a session of its
# own, one whose parent is gone, and one that ignores signals. Then does what its arguments say.
. "${0%/*}/prelude.sh"
sleep infinity &
setsid sleep infinity &
(setsid bash -c 'sleep infinity & exit' &)
setsid bash -c 'trap "" TERM INT HUP; sleep infinity' &
disown -a
announce
"$@"
