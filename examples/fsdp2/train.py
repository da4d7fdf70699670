"""Trains a tiny model with FSDP2. A restart goes on from the newest checkpoint, in memory or in the folder.

    mkdir checkpoints
    ragent --nproc-per-node 2 --max-restarts 3 --notice 60 examples/fsdp2/train.py --folder checkpoints

Another number of workers may go on. The folder must be the same on all nodes.
"""

import argparse
import os

import ragent
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="checkpoints", help="it must exist")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save-every", type=float, default=600, metavar="SECONDS")
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
    checkpoints = ragent.CheckpointManager(args.folder, {"model": model, "optimizer": optimizer}, every=args.save_every)

    # Ranks draw different numbers, and others than before a restart.
    torch.manual_seed(dist.get_rank())
    step = checkpoints.load()
    if step and dist.get_rank() == 0:
        print(f"resumed after step {step}", flush=True)
    while step < args.steps:
        inputs = torch.randn(8, 8, device="cuda" if has_gpu else "cpu")
        torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        ragent.step(step, total=args.steps)
        checkpoints.save(step, last=step == args.steps)
    if dist.get_rank() == 0:
        print(f"trained {step} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
