"""Trains a tiny model with FSDP2. A restart goes on from a checkpoint in memory, and a new job from the folder.

    ragent --nproc-per-node 2 --max-restarts 3 --notice 60 examples/fsdp2/train.py --folder checkpoints

`torch.distributed.checkpoint` writes both, so another number of workers may go on. The folder must be the same on all nodes.
"""

import argparse
import os
from pathlib import Path

import ragent
import ragent.checkpoint as memory
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=500)
    parser.add_argument("--save-in-memory-every", type=int, default=50)
    args = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # With both backends, a question of ragent to all ranks does not use the GPU.
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    fully_shard(model.to("cuda" if has_gpu else "cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step = load(model, optimizer, args.folder)
    torch.manual_seed(step * dist.get_world_size() + dist.get_rank())
    while step < args.steps:
        inputs = torch.randn(8, 8, device="cuda" if has_gpu else "cpu")
        torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        ragent.step(step, total=args.steps)
        if step % args.save_in_memory_every == 0:
            dcp.save(parts(model, optimizer), storage_writer=memory.MemoryWriter(step))
        # Asked at each step, by every rank. It may be True at a step of the second kind, too.
        if ragent.should_save(step) or step % args.save_every == 0 or step == args.steps:
            dcp.save(parts(model, optimizer), checkpoint_id=args.folder / f"step-{step}")
            ragent.saved(step)
    if dist.get_rank() == 0:
        print(f"trained {step} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def parts(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def load(model, optimizer, folder):
    """Loads the newest checkpoint, and returns its step. 0 if there is none."""
    reader, values = memory.MemoryReader(), parts(model, optimizer)
    if reader.step is not None:
        step, place = reader.step, "in memory"
        dcp.load(values, storage_reader=reader)
    else:
        # DCP writes `.metadata` last, so a folder without it is half a checkpoint.
        steps = [int(path.parent.name[len("step-") :]) for path in folder.glob("step-*/.metadata")]
        if not steps:
            return 0
        step, place = max(steps), "on disk"
        dcp.load(values, checkpoint_id=folder / f"step-{step}")
    set_state_dict(model, optimizer, model_state_dict=values["model"], optim_state_dict=values["optimizer"])
    if dist.get_rank() == 0:
        print(f"resumed after step {step} {place}", flush=True)
    return step


if __name__ == "__main__":
    main()
