"""A worker that trains with DistributedDataParallel on gloo.

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
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(FEATURES, FEATURES))
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    send_stamp(time.monotonic_ns())
    while True:
        send_heartbeat()
        time.sleep(STEP_S)
        step(model, optimizer)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.rand(FEATURES, FEATURES)).sum().backward()
    optimizer.step()


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
