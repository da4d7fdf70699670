"""Trains a small network on handwritten digits with DistributedDataParallel.

Plain PyTorch, independent of the launcher. It reads RANK, WORLD_SIZE, MASTER_ADDR and the like
through init_process_group(), works with any number of workers, and may be killed and started
again at any time, with more or fewer of them: it continues after the last complete epoch.

    ragent --nnodes 1 --nproc-per-node 4 examples/digits/train.py --checkpoint digits.pt

With `--save-in-memory STEPS` it also saves in the memory of the nodes, by the Python module of ragent.
"""

import argparse
import contextlib
import gzip
import json
import os
import socket
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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
    sampler = DistributedSampler(train_set)
    batches = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

    model = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    memory = InMemory(args.save_in_memory, model, optimizer, len(batches))
    steps_done = memory.load()
    if steps_done is not None:
        resumed = f"resumed after step {steps_done}, from memory"
    elif epochs_done := resume(args.checkpoint, model, optimizer):
        resumed = f"resumed after epoch {epochs_done} of {args.epochs}"
        steps_done = epochs_done * len(batches)
    else:
        resumed, steps_done = "", 0
    parallel = DistributedDataParallel(model)
    if rank == 0 and resumed:
        print(resumed, flush=True)

    accuracy = test(model, test_set)
    for epoch in range(steps_done // len(batches), args.epochs):
        start = time.monotonic()
        sampler.set_epoch(epoch)  # another shuffle each epoch, the same on every worker
        loss = train(parallel, optimizer, batches, epoch, args.epochs, steps_done, memory)
        accuracy = test(model, test_set)
        if rank == 0:
            save(args.checkpoint, model, optimizer, epoch + 1)
            report_saved((epoch + 1) * len(batches))
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


def train(parallel, optimizer, batches, epoch, epochs, steps_done, memory):
    """Trains for one epoch, without the steps that are done, and returns the mean loss over all workers."""
    total, begin = 0.0, epoch * len(batches)
    for step, (images, digits) in enumerate(batches, start=begin + 1):
        if step <= steps_done:
            continue
        optimizer.zero_grad()
        loss = cross_entropy(parallel(images), digits)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        report_step(step, epochs * len(batches))
        memory.save(step)
    mean = total / (len(batches) - max(0, steps_done - begin))
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


@torch.no_grad()
def test(model, test_set):
    """Returns the share of the test set that `model` gets right. Small enough for every worker."""
    images, digits = test_set.tensors
    return (model(images).argmax(dim=1) == digits).float().mean().item()


def resume(path, model, optimizer):
    """Loads the checkpoint of rank 0 on every worker, and returns the number of epochs done.

    Only rank 0 reads the file and broadcasts it, so a worker on a new node needs no file.
    """
    told = [None]
    if dist.get_rank() == 0 and path and path.exists():
        told = [torch.load(path, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(told)
    if told[0] is None:
        return 0
    model.load_state_dict(told[0]["model"])
    optimizer.load_state_dict(told[0]["optimizer"])
    return told[0]["epochs_done"]


def save(path, model, optimizer, epochs_done):
    """Writes the checkpoint to a new file, then renames it, so that it is never incomplete."""
    if path is None:
        return
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epochs_done": epochs_done,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    torch.save(state, new)
    new.replace(path)


class InMemory:
    """Saves the state of all ranks, which is equal with DistributedDataParallel, in the memory of the nodes."""

    def __init__(self, every, model, optimizer, batches):
        self.memory = import_module("ragent.checkpoint") if every else None
        self.every = every
        self.batches = batches
        self.state = {"model": model, "optimizer": optimizer, "batches": batches}

    def load(self):
        """Returns the number of steps done, the same on all ranks. None: there is nothing in memory."""
        step = self.memory.load(self.state) if self.memory else None
        if step is None:
            return None
        # With another number of workers, an epoch has another number of batches.
        saved, self.state["batches"] = self.state["batches"], self.batches
        return step * self.batches // saved

    def save(self, step):
        """Saves after each `every` steps."""
        if self.memory and step % self.every == 0:
            self.memory.save(step, self.state, replicated=True)


def send_heartbeat():
    """Reports progress to a launcher or service manager that expects it, as `sd_notify` does."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"WATCHDOG=1", path)


def report_step(step, steps):
    """Reports the training step to ragent, if that is the launcher. While its agent is busy, reports are skipped."""
    if path := os.environ.get("RAGENT_SOCKET"):
        with contextlib.suppress(OSError):
            AGENT.sendto(f"X_RAGENT_STEP={step}\nX_RAGENT_STEPS={steps}".encode(), path)


def report_saved(step):
    """Reports to ragent that this rank has saved everything, also for a notice that the agent has received.

    With the module `ragent`, `ragent.saved(step, whole=True)` does the same.
    """
    if path := os.environ.get("RAGENT_SOCKET"):
        notice = 0
        with contextlib.suppress(OSError):
            notice = json.loads(Path(os.environ["RAGENT_NOTICE_FILE"]).read_text())["notice"]
        lines = f"X_RAGENT_SAVED={step}\nX_RAGENT_SAVED_WHOLE=1\nX_RAGENT_NOTICE={notice}"
        with contextlib.suppress(OSError):
            AGENT.sendto(lines.encode(), path)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="images per worker and step")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="where to save and resume")
    parser.add_argument("--save-in-memory", type=int, default=0, metavar="STEPS",
                        help="also save in the memory of the nodes after each STEPS steps; needs the module `ragent`")
    parser.add_argument("--min-accuracy", type=float, default=0.0, metavar="SHARE",
                        help="exit 1 if the test accuracy ends below this, such as 0.95")
    parser.add_argument("--seconds-per-epoch", type=float, default=0.0, metavar="SECONDS",
                        help="wait so that an epoch takes at least this long (for demos)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
