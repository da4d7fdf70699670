#!/bin/bash
# Says in one line which rank it is, and where rank 0 is.
echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, at $MASTER_ADDR"
