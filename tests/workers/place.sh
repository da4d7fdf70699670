#!/bin/bash
# Prints in one line its rank, and the address of rank 0.
echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, at $MASTER_ADDR"
