"""A worker that trains with DistributedDataParallel: on gloo, or with `BENCH_BACKEND=nccl` on the GPU of its
local rank.

After its first optimizer step it sends a stamp, as `stamp_worker` does at its start. It then makes a
step and sends a heartbeat every second, until it is killed.
"""

import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES = 64
STEP_S = 1


def main():
    backend = os.environ.get("BENCH_BACKEND", "gloo")
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    model = DistributedDataParallel(nn.Linear(FEATURES, FEATURES).to(device))
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer, device)
    send_stamp(time.monotonic_ns())
    while True:
        send_heartbeat()
        time.sleep(STEP_S)
        step(model, optimizer, device)


def step(model, optimizer, device):
    """Makes a step, and waits until the device has completed it."""
    optimizer.zero_grad()
    loss = model(torch.rand(FEATURES, FEATURES, device=device)).sum()
    loss.backward()
    optimizer.step()
    loss.item()


def send_stamp(at_ns):
    variables = (os.environ[name] for name in ("GROUP_RANK", "RANK", "WORLD_SIZE"))
    send(os.environ["BENCH_STAMPS"], " ".join([*variables, str(os.getpid()), str(at_ns)]))


def send_heartbeat():
    if path := os.environ.get("NOTIFY_SOCKET"):
        send(path, "WATCHDOG=1")


def send(path, text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), path)


if __name__ == "__main__":
    main()
