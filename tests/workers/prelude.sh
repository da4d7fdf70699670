# Sourced by the fake workers. Announces this worker, and holds the lifeline, if there is one, in this process and its
# descendants. It is opened in both directions, because a reader may be missing.
if [ -n "${LIFELINE:-}" ]; then exec 9<>"$LIFELINE"; fi
announce() {
    echo "worker rank=$RANK local_rank=$LOCAL_RANK group_rank=$GROUP_RANK" \
        "world_size=$WORLD_SIZE group_world_size=$GROUP_WORLD_SIZE" \
        "restart=$TORCHELASTIC_RESTART_COUNT pid=$$"
}
