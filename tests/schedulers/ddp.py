"""Three steps of data-parallel training on gloo, configured by the environment only."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(rank + step))).sum().backward()
        optimizer.step()
    weights = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach()[0])
    assert all(torch.equal(weights[0], other) for other in weights), weights
    local = f"{os.environ['LOCAL_RANK']} of {os.environ['LOCAL_WORLD_SIZE']}"
    # One write, so that lines of several ranks stay whole.
    os.write(1, f"rank {rank} of {size}, local {local}, trained\n".encode())
    # Rank 0 serves the store: it must not end while others still use it.
    dist.barrier()
    dist.destroy_process_group()
    # Torch's own teardown at the end of the interpreter aborts once in a hundred runs on a busy machine.
    os._exit(0)


if __name__ == "__main__":
    main()
