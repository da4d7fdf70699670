"""The usual operations of a training script on a process group, for any version of torch.

Prints its results, one line a rank. In the first attempt rank 0 fails after that, so that a second round
follows.
"""

import os
import sys

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    dist.barrier()
    pair = dist.new_group([0, size - 1])
    product = torch.tensor([float(rank + 2)])
    if rank in (0, size - 1):
        dist.all_reduce(product, op=dist.ReduceOp.PRODUCT, group=pair)
    dist.barrier()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    # One write, so that lines of several ranks stay whole.
    line = f"attempt={attempt} rank={rank} sum={int(total)} product={int(product)} torch={torch.__version__}\n"
    os.write(1, line.encode())
    # No rank fails before all have printed their line.
    dist.barrier()
    dist.destroy_process_group()
    if attempt == 0 and rank == 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
