"""Trains with checkpoints in memory by `MemoryWriter`, with any number of ranks, and prints digests of the model and the optimizer.

Each process loads, prints the digest, trains a few steps, saves, and prints the digest again when the checkpoint is whole. Then it waits
for a restart, unless it has begun after the step `LAST`.
"""

import hashlib
import os
import signal

import ragent.checkpoint as memory
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

STEPS, LAST = 3, 6
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
# The sizes are multiples of neither 3 nor 4.
model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.Tanh(), torch.nn.Linear(33, 1))
try:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
except ImportError:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def tell(text):
    # One write, so that lines of several workers are not mixed.
    os.write(1, f"rank={rank} world={world} {text}\n".encode())


def parts():
    return {**dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))), "rng": memory.rng()}


def digest():
    values = [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())]
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in values]
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in whole)).hexdigest()[:16]


reader = memory.MemoryReader()
step = reader.step or 0
if reader.step is not None:
    values = parts()
    dcp.load(values, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=values["model"], optim_state_dict=values["optimizer"])
tell(f"begins={step} random={torch.rand(1).item()} digest={digest() if step else None}")
if step < LAST:
    for _ in range(STEPS):
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    step += STEPS
    dcp.save(parts(), storage_writer=memory.MemoryWriter(step))
    while memory.newest_whole() != step:
        pass
    tell(f"saved={step} digest={digest()}")
    # The agent ends it for the next round.
    signal.pause()
dist.barrier()
dist.destroy_process_group()
# A thread of gloo may abort a process that ends in the usual way on a busy machine.
os._exit(0)
