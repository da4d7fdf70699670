"""Trains with checkpoints in memory, and prints if it has reached the same parameters as training without interruption.

In the first round, rank 1 is killed after a step. The modes are `state` (each rank saves its own), `replicated`
(DistributedDataParallel) and `dcp` (the writer and the reader for torch's distributed checkpoint, with FSDP2 if this torch has it).
"""

import os
import signal
import sys

import ragent.checkpoint as memory
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

mode = sys.argv[1]
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STEPS, KILL_AFTER = 30, 14
dist.init_process_group("gloo")
rank = dist.get_rank()


def tell(text):
    # One write, so that lines of several workers are not mixed.
    os.write(1, f"rank={rank} {text}\n".encode())


def build():
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        fully_shard = None
    if mode == "dcp" and fully_shard is not None:
        fully_shard(model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(100 + rank)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def parts(model, optimizer):
    values = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    return {**values, "rng": memory.rng()}


def load(model, optimizer):
    if mode != "dcp":
        return memory.load({"model": model, "optimizer": optimizer})
    reader = memory.MemoryReader()
    if reader.step is None:
        return None
    values = parts(model, optimizer)
    dcp.load(values, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=values["model"], optim_state_dict=values["optimizer"])
    return reader.step


def save(step, model, optimizer):
    if mode == "dcp":
        return dcp.save(parts(model, optimizer), storage_writer=memory.MemoryWriter(step))
    return memory.save(step, {"model": model, "optimizer": optimizer}, replicated=mode == "replicated")


def train(step, model, optimizer, saves):
    while step < STEPS:
        if mode == "replicated":
            torch.manual_seed(1000 * step + rank)
        # Otherwise the generator goes on from where it was saved.
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if saves and step % 3 == 0:
            save(step, model, optimizer)
        if saves and step == KILL_AFTER and restart == 0 and rank == 1:
            # A checkpoint is known to be whole.
            while memory.newest_whole() is None:
                pass
            os.kill(os.getpid(), signal.SIGKILL)
    wholes = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]
    return torch.cat([each.detach().flatten() for each in wholes])


model, optimizer = build()
step = load(model, optimizer)
tell(f"restart={restart} begins after={step}")
interrupted = train(step or 0, model, optimizer, True)
tell(f"same={torch.equal(interrupted, train(0, *build(), False))}")
dist.barrier()
dist.destroy_process_group()
# A thread of gloo may abort a process that ends in the usual way on a busy machine.
os._exit(0)
