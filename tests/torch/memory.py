"""Trains with checkpoints in memory, and prints a number that depends on all steps. In the first round, rank 1 is killed after a step.

Modes: `state` (each rank saves its own), `replicated` (DistributedDataParallel) and `dcp` (the writer and the reader for torch's
distributed checkpoint, with FSDP2 if this torch has it).
"""

import os
import signal
import sys

import ragent.checkpoint as memory
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

mode, kill_after = sys.argv[1], int(sys.argv[2])
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
if mode == "dcp":
    try:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    except ImportError:
        model = torch.nn.parallel.DistributedDataParallel(model)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}


def tell(text):
    # One write, so that lines of several workers are not mixed.
    os.write(1, f"rank={rank} {text}\n".encode())


def load():
    if mode != "dcp":
        return memory.load(state)
    import torch.distributed.checkpoint as dcp

    reader = memory.MemoryReader()
    if reader.step is None:
        return None
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    parts["rng"] = memory.rng()
    dcp.load(parts, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
    return reader.step


def save(step):
    if mode != "dcp":
        return memory.save(step, state, replicated=mode == "replicated")
    import torch.distributed.checkpoint as dcp

    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    parts["rng"] = memory.rng()
    dcp.save(parts, storage_writer=memory.MemoryWriter(step))


torch.manual_seed(100 + rank)
step = load()
tell(f"restart={restart} begins after={step}")
step = step or 0
while step < 30:
    if mode == "replicated":
        torch.manual_seed(1000 * step + rank)
    # Otherwise the generator goes on from where it was saved.
    loss = (model(torch.randn(8, 16)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 3 == 0:
        save(step)
    if step == kill_after and restart == 0 and rank == 1:
        # A checkpoint is known to be whole.
        while memory.newest_whole() is None:
            pass
        os.kill(os.getpid(), signal.SIGKILL)
total = 0.0
for parameter in model.parameters():
    whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    total += whole.detach().double().sum().item()
tell(f"result={total:.12f}")
dist.barrier()
dist.destroy_process_group()
