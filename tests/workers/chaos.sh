#!/bin/bash
# Records its identity, and when it runs, until it is killed or $SCRATCH/done exists. It writes a file of its own in
# $SCRATCH/history: a line of facts, and then the time since boot, in seconds, again and again. With $1 = `stubborn` it
# ignores all signals that can be ignored. With `family` it starts such a process in a session of its own. After SIGUSR1 it hangs.
read -r now _ </proc/uptime
exec 7<>"$SCRATCH/never" 8>>"$SCRATCH/history/$MASTER_PORT.$$"
echo "started=$now agent=$AGENT kind=${2:-worker} pid=$$ keeper=${KEEPER:-$PPID} run_id=$TORCHELASTIC_RUN_ID" \
    "rank=$RANK local_rank=$LOCAL_RANK group_rank=$GROUP_RANK world_size=$WORLD_SIZE" \
    "local_world_size=$LOCAL_WORLD_SIZE group_world_size=$GROUP_WORLD_SIZE" \
    "master=$MASTER_ADDR:$MASTER_PORT restart_count=$TORCHELASTIC_RESTART_COUNT" \
    "max_restarts=$TORCHELASTIC_MAX_RESTARTS" >&8
trap 'read -r -u 7' USR1
case $1 in
stubborn) trap '' TERM INT HUP QUIT ;;
family) KEEPER=$PPID setsid "$0" stubborn orphan 7>&- 8>&- & ;;
esac
while [[ ! -e $SCRATCH/done ]]; do
    read -r now _ </proc/uptime
    echo "$now" >&8
    # No process ever writes to it.
    read -r -t 0.03 -u 7
done
exit 0
