"""Trains a small network on handwritten digits with DistributedDataParallel.

It reads RANK, WORLD_SIZE, MASTER_ADDR and the like through init_process_group(), so any launcher can start it. It works with
any number of workers, and may be killed and started again at any time, with more or fewer of them. The batches stay the same.

    mkdir digits
    ragent --nnodes 1 --nproc-per-node 4 examples/digits/train.py --folder digits

It goes on from the newest checkpoint in memory or in the folder. Without a folder, it saves nothing. It needs the Python module
of ragent.
"""

import argparse
import contextlib
import gzip
import os
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import ragent
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

# Reports go to the agent of ragent, if that is the launcher.
AGENT = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


def main():
    args = parse_args()
    # Several workers share the machine, so each has one thread. A fixed seed makes the first weights equal.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = join_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    train_set, test_set = load_digits(device)
    sampler = ragent.GlobalBatchSampler(train_set, args.batch_size)
    batches = DataLoader(train_set, batch_sampler=sampler)

    model = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    state = {"model": model, "optimizer": optimizer, "sampler": sampler}
    # All ranks have the same state.
    checkpoints = args.folder and ragent.CheckpointManager(args.folder, state, every=args.save_every, replicated=True)
    step = checkpoints.load() if checkpoints else 0
    if rank == 0 and step:
        print(f"resumed after step {step}, in epoch {sampler.epoch + 1}", flush=True)
    parallel = DistributedDataParallel(model)

    accuracy = test(model, test_set)
    for epoch in range(sampler.epoch, args.epochs):
        if is_end(args.end_file, epoch):
            break
        start = time.monotonic()
        step, loss = train(parallel, optimizer, sampler, batches, step, args.epochs, checkpoints)
        accuracy = test(model, test_set)
        if rank == 0:
            print(
                f"epoch={epoch + 1}/{args.epochs} world_size={world_size} loss={loss:.4f} "
                f"accuracy={accuracy:.4f} seconds={time.monotonic() - start:.2f}",
                flush=True,
            )
        send_heartbeat()
        # Real epochs take hours. This gives a demo the time to break something.
        time.sleep(max(0.0, start + args.seconds_per_epoch - time.monotonic()))

    dist.destroy_process_group()
    # Every worker has the same weights and so the same accuracy. All come to the same verdict.
    if accuracy < args.min_accuracy:
        verdict = f"accuracy {accuracy:.4f} is below --min-accuracy {args.min_accuracy:.4f}"
        sys.exit(verdict if rank == 0 else 1)


def join_process_group():
    """Joins the other workers, and returns the device that this one computes on."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def load_digits(device):
    """Returns 1437 images to train on and 360 to test with: every fifth is for testing.

    The file comes inside the scikit-learn package. It is read without importing the package,
    which would cost each worker a second. A line is 64 pixels from 0 to 16, then the digit.
    """
    package = find_spec("sklearn")
    if package is None:
        sys.exit("the digits come inside the scikit-learn package, which is not installed")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.float32)).to(device)
    images = (table[:, :-1] / 16).reshape(-1, 1, 8, 8)
    digits = table[:, -1].long()
    is_test = torch.arange(len(table), device=device) % 5 == 0
    return (
        TensorDataset(images[~is_test], digits[~is_test]),
        TensorDataset(images[is_test], digits[is_test]),
    )


def train(parallel, optimizer, sampler, batches, step, epochs, checkpoints):
    """Trains to the end of the epoch. Returns the number of all steps, and the mean loss over all workers."""
    total, begin, steps = 0.0, step, epochs * sampler.steps_per_epoch
    for micro_batches in sampler.steps(batches, parallel):
        optimizer.zero_grad()
        for (images, digits), weight in micro_batches:
            loss = cross_entropy(parallel(images), digits) * weight
            loss.backward()
            total += loss.detach()
        optimizer.step()
        step += 1
        report_step(step, steps)
        if checkpoints:
            checkpoints.save(step, last=step == steps)
    mean = total / (step - begin)
    dist.all_reduce(mean)
    return step, mean.item() / dist.get_world_size()


@torch.no_grad()
def test(model, test_set):
    """Returns the share of the test set that `model` gets right. Small enough for every worker."""
    images, digits = test_set.tensors
    return (model(images).argmax(dim=1) == digits).float().mean().item()


def send_heartbeat():
    """Reports progress to a launcher or service manager that expects it, as `sd_notify` does."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"WATCHDOG=1", path)


def is_end(path, epochs):
    """Returns true if `path` has the number of epochs after which the training ends, and so many are trained."""
    with contextlib.suppress(TypeError, OSError, ValueError):
        return epochs >= int(Path(path).read_text())
    return False


def report_step(step, steps):
    """Reports the training step to ragent, if that is the launcher. While its agent is busy, reports are skipped."""
    if path := os.environ.get("RAGENT_SOCKET"):
        with contextlib.suppress(OSError):
            AGENT.sendto(f"X_RAGENT_STEP={step}\nX_RAGENT_STEPS={steps}".encode(), path)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, of all workers together")
    parser.add_argument("--folder", help="where to save and resume; it must exist")
    parser.add_argument("--save-every", type=float, default=10, metavar="SECONDS", help="how often to save in the folder (%(default)s)")
    parser.add_argument("--min-accuracy", type=float, default=0.0, metavar="SHARE",
                        help="exit 1 if the test accuracy ends below this, such as 0.95")
    parser.add_argument("--seconds-per-epoch", type=float, default=0.0, metavar="SECONDS",
                        help="wait so that an epoch takes at least this long (for demos)")
    parser.add_argument("--end-file", metavar="FILE",
                        help="end after as many epochs as this file says; it may be written during the training (for demos)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
