"""The training that drill.py breaks: a small model with DistributedDataParallel, on GPUs if there are any.

It saves by `ragent.CheckpointManager`, and trains until a notice ends it. All ranks of a node write lines of JSON to the file `DRILL_STEPS`:
each where it begins, and local rank 0 each step.
"""

import json
import os
import sys
import time

import ragent
import torch
import torch.distributed as dist
from ragent.checkpoint import newest_whole
from torch.nn.parallel import DistributedDataParallel

# The checkpoints in the folder. The loss of all nodes at once costs the steps since the last one.
SAVE_EVERY_S = 10


def main():
    local_rank, has_gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
    device = "cuda" if has_gpu else "cpu"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    parallel = DistributedDataParallel(model)
    state = {"model": model, "optimizer": optimizer}
    checkpoints = ragent.CheckpointManager(sys.argv[1], state, every=SAVE_EVERY_S, replicated=True)
    step = checkpoints.load()
    write(rank=dist.get_rank(), pid=os.getpid(), loaded=step)
    while True:
        inputs = torch.randn(32, 64, device=device)
        loss = (parallel(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # The time is read when the GPU has done the step.
        loss.item()
        step += 1
        ragent.step(step)
        if local_rank == 0:
            write(step=step, copied=newest_whole() or 0, at=time.monotonic())
        checkpoints.save(step)
        # The drill must not fill the disk.
        time.sleep(0.05)


def write(**line):
    """Writes a line. Closing the file lets other machines read it on NFS. Each round has its own port, so the port names the round."""
    line["round"] = "{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ)
    with open(os.environ["DRILL_STEPS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
