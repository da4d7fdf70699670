"""Trains a tiny model with accelerate. It saves before its node is taken, and goes on after the last checkpoint.

    ragent --nproc-per-node 2 --notice 60 examples/accelerate/train.py --folder checkpoints

Ask for a checkpoint from another terminal with `ragent notice save`, or end the job with `ragent notice end`. Start it again, and it
goes on at the step that all ranks have saved, also with another number of workers that divides 24. The folder must be the same on all
nodes. Without ragent as its launcher, the script saves every `--save-every` steps only.
"""

import argparse
import shutil
import time
from pathlib import Path

import ragent
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


def main():
    args = parse_args()
    # A batch is divided among the ranks, so its size and `len(loader)` do not depend on their number.
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=DataLoaderConfiguration(split_batches=True))
    torch.manual_seed(0)
    # Whole batches only. accelerate would fill up the last one, in another way with another number of ranks.
    inputs = torch.randn(480, 8)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=24))

    step = resume(accelerator, args.folder)
    while step < args.steps:
        for batch, targets in accelerator.skip_first_batches(loader, step % len(loader)):
            loss = mse_loss(model(batch), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            ragent.step(step, total=args.steps)
            is_regular = step % args.save_every == 0 or step == args.steps
            # Asked at each step, by every rank. It may be True on a step that is regular, too.
            if ragent.should_save(step) or is_regular:
                save(accelerator, args.folder, step)
            if step == args.steps:
                break
    weights = sum(parameter.sum().item() for parameter in model.parameters())
    accelerator.print(f"trained {step} steps, the sum of all weights is {weights:.6f}", flush=True)

    accelerator.wait_for_everyone()
    # A model that outlives its process group sometimes aborts the interpreter at its end.
    del model, optimizer, loader, loss
    accelerator.free_memory()
    accelerator.end_training()


def resume(accelerator, folder):
    """Loads the newest checkpoint, and returns its step. 0 if there is none."""
    steps = [int(path.name[len("step-") :]) for path in folder.glob("step-*")]
    if not steps:
        return 0
    accelerator.load_state(str(folder / f"step-{max(steps)}"))
    accelerator.print(f"resumed after step {max(steps)}", flush=True)
    return max(steps)


def save(accelerator, folder, step):
    """Saves a checkpoint. It gets its name when it is complete, so a script that is killed leaves no half of one."""
    begin = time.monotonic()
    draft, path = folder / "new", folder / f"step-{step}"
    if accelerator.is_main_process:
        shutil.rmtree(draft, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(draft))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        draft.rename(path)
        for older in folder.glob("step-*"):
            if older != path:
                shutil.rmtree(older)
        # All ranks have written their parts, so one of them reports the whole.
        ragent.saved(step, seconds=time.monotonic() - begin, whole=True)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default="checkpoints", help="where to save and resume")
    parser.add_argument("--steps", type=int, default=2000, help="when to stop")
    parser.add_argument("--save-every", type=int, default=500, metavar="STEPS", help="save after so many steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
