#!/bin/bash
# Starts processes that no process waits for: a child in the background, another in a session of its own, an orphan, and
# a process that ignores signals. Then runs its arguments.
. "${0%/*}/prelude.sh"
sleep infinity &
setsid sleep infinity &
(setsid bash -c 'sleep infinity & exit' &)
setsid bash -c 'trap "" TERM INT HUP; sleep infinity' &
disown -a
announce
"$@"
