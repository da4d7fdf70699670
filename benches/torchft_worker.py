"""A replica group of torchft with one rank, which trains as `ddp_worker.py` does.

    torchft_worker.py GROUP GROUPS

After each change of the number of groups in a step, it sends a stamp.
"""

import os
import sys
import time

import torch
from ddp_worker import FEATURES, STEP_S, send, step
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def main():
    group, groups = sys.argv[1:]
    inner = nn.Linear(FEATURES, FEATURES)
    adam = torch.optim.Adam(inner.parameters())

    def load(state):
        inner.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    def saved():
        return {"model": inner.state_dict(), "optimizer": adam.state_dict()}

    manager = Manager(pg=ProcessGroupGloo(), load_state_dict=load, state_dict=saved, min_replica_size=1,
                      replica_id=f"group{group}")
    model, optimizer = DistributedDataParallel(manager, inner), Optimizer(manager, adam)
    before = 0
    while True:
        last = manager.current_step()
        step(model, optimizer, torch.device("cpu"))
        size = manager.num_participants()
        if manager.current_step() > last and size != before:
            send(os.environ["BENCH_STAMPS"], f"{group} {group} {size} {os.getpid()} {time.monotonic_ns()}")
            before = size
        # A group that joins waits for no pause of the others.
        if size == int(groups):
            time.sleep(STEP_S)


if __name__ == "__main__":
    main()
