"""A worker that saves in memory: `copy MIB TIMES` measures `save` and a bare `copy_`, and `train MB` trains.

`copy` appends a line for each step to the file `figures` in its working folder: the seconds of `save`, those until the step is
whole, and those of `copy_`. Only rank 0 has so many MiB and writes, so that the other host does nothing but keep a copy.
`train` sends a stamp after its first step, as `stamp_worker` does at its start. With `RAGENT_MEMORY_SOCKET`, it goes on from memory
first, saves after that step, and appends a line to the file `whole` when the step is safe. It then makes a step every 0.1 s.
"""

import os
import sys
import time

import ragent.checkpoint as memory
import torch
import torch.distributed as dist
from ddp_worker import send_heartbeat, send_stamp

# Tensors of a state.
TENSORS = 16
LOOK_S = 0.01
STEP_S = 0.1


def state_of(size):
    """Returns a state of so many bytes, whose pages exist."""
    return {f"part{number}": torch.ones(size // 4 // TENSORS) for number in range(TENSORS)}


def copy(mib, times):
    """Saves after one another, and copies to tensors that exist in between."""
    is_first = os.environ["RANK"] == "0"
    mib = mib if is_first else 1
    state = state_of(mib << 20)
    target = state_of(mib << 20)
    with open("figures" if is_first else os.devnull, "a", buffering=1) as figures:
        for step in range(1, times + 1):
            began = time.perf_counter()
            if not memory.save(step, state):
                sys.exit("nothing was saved")
            saved = time.perf_counter() - began
            wait_for_whole(step)
            whole = time.perf_counter() - began
            began = time.perf_counter()
            for name, tensor in state.items():
                target[name].copy_(tensor)
            print(saved, whole, time.perf_counter() - began, file=figures)


def train(megabytes):
    """Trains until it is killed."""
    dist.init_process_group("gloo")
    state = state_of(megabytes * 1_000_000)
    step = memory.load(state) or 0
    one_step(state)
    send_stamp(time.monotonic_ns())
    if memory.save(step + 1, state):
        wait_for_whole(step + 1)
    with open("whole", "a") as file:
        print(step + 1, file=file)
    while True:
        send_heartbeat()
        time.sleep(STEP_S)
        one_step(state)


def one_step(state):
    """Changes all of the state, together with the other workers."""
    gradient = torch.ones(1)
    dist.all_reduce(gradient)
    for tensor in state.values():
        tensor.add_(gradient)


def wait_for_whole(step):
    while (memory.newest_whole() or 0) < step:
        time.sleep(LOOK_S)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, *numbers = sys.argv[1:]
    {"copy": copy, "train": train}[kind](*map(int, numbers))
