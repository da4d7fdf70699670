"""Trains on gloo, asks for a checkpoint at the same step on all ranks, and goes on from the newest one that is whole."""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

import ragent

MODE, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])


def say(text):
    os.write(1, f"{text}\n".encode())


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
saved = os.environ["RAGENT_SAVED_STEP"]
step = int(saved) if saved else 0
say(f"rank={rank} of={size} begins after={step}")
value = torch.ones(1)
while True:
    step += 1
    dist.all_reduce(value)
    value.fill_(1)
    time.sleep(0.05)
    ragent.step(step)
    if MODE == "fail" and step == 7:
        sys.exit(3)
    if ragent.should_save(step, every=2):
        (FOLDER / f"saved.{step}.{rank}").write_text("")
        dist.barrier()
        ragent.saved(step)
        say(f"rank={rank} saved={step}")
        if MODE == "exit":
            sys.exit(0)
        # What follows would be done again.
        time.sleep(300)
