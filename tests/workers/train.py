#!/usr/bin/env python3
"""Trains with DistributedDataParallel until it is ordered to end: with NCCL on the GPU of its local
rank, or with gloo on a processor if there is no GPU.

It prints a line for its first step and sends a heartbeat with each step. Rank 0 reads orders, one byte
each, from $SCRATCH/orders. On an order all ranks fail with exit code 3, or succeed if this is the last
restart.
"""

import os
import select
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES = 64
STEP_S = 0.1


def main():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    orders = os.open(os.environ["SCRATCH"] + "/orders", os.O_RDWR)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.connect(os.environ["NOTIFY_SOCKET"])

    model = DistributedDataParallel(nn.Linear(FEATURES, FEATURES).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    is_first, is_over = True, False
    while not is_over:
        optimizer.zero_grad()
        model(torch.rand(FEATURES, FEATURES, device=device)).sum().backward()
        optimizer.step()
        is_ordered = rank == 0 and is_there_an_order(orders)
        sums = torch.tensor([1, int(is_ordered)], device=device)
        dist.all_reduce(sums)
        ranks, ordered = sums.tolist()
        assert ranks == size
        manager.send(b"WATCHDOG=1")
        if is_first:
            facts = f"rank={rank} world_size={size} restart={restart} backend={backend}"
            os.write(1, f"trains {facts} pid={os.getpid()}\n".encode())
        is_first, is_over = False, ordered > 0

    if restart != os.environ["TORCHELASTIC_MAX_RESTARTS"]:
        os._exit(3)
    dist.destroy_process_group()


def is_there_an_order(orders):
    """Waits for an order for a moment, and takes it before any rank acts on it."""
    return bool(select.select([orders], [], [], STEP_S)[0]) and os.read(orders, 1) != b""


if __name__ == "__main__":
    main()
