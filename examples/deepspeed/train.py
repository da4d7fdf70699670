"""Trains a tiny model with DeepSpeed and ZeRO. After a failure it goes on from the newest checkpoint in the folder.

    ragent --nproc-per-node 2 --max-restarts 10 --notice 60 examples/deepspeed/train.py --folder checkpoints

The folder must be the same on all nodes.
"""

import argparse
from pathlib import Path

import deepspeed
import ragent
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        # Without a GPU, DeepSpeed would compile an operation first: a minute, and a C++ compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    engine, *_ = deepspeed.initialize(config=CONFIG, model=model, model_parameters=model.parameters())

    # Loads the checkpoint that the file `latest` names.
    checkpoint, _ = engine.load_checkpoint(args.folder)
    if checkpoint and engine.global_rank == 0:
        print(f"resumed after step {engine.global_steps}", flush=True)
    torch.manual_seed(engine.global_steps * engine.world_size + engine.global_rank)
    while engine.global_steps < args.steps:
        inputs = torch.randn(8, 8, device=engine.device)
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), inputs.sum(dim=1, keepdim=True)))
        engine.step()
        step = engine.global_steps
        ragent.step(step, total=args.steps)
        # Asked at each step, by every rank. It may be True at a step of the second kind, too.
        if ragent.should_save(step) or step % args.save_every == 0 or step == args.steps:
            save(engine, args.folder)
            ragent.saved(step)
    if engine.global_rank == 0:
        print(f"trained {engine.global_steps} steps", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def save(engine, folder):
    """Saves a checkpoint, and names it in `latest` once all ranks have written their parts. DeepSpeed would not wait for them."""
    engine.save_checkpoint(folder, save_latest=False)
    if engine.global_rank == 0:
        draft = folder / "latest.new"
        draft.write_text(f"global_step{engine.global_steps}")
        draft.replace(folder / "latest")


if __name__ == "__main__":
    main()
