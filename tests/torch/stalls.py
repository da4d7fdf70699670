"""Makes quick steps with gloo, until rank 2 does not come to a collective. With `observe`, it calls `ragent.observe()`."""

import sys
import time

import ragent
import torch
import torch.distributed as dist

STEPS = 40


def load_batch():
    if dist.get_rank() == 2:
        time.sleep(3600)


if "observe" in sys.argv and not ragent.observe():
    sys.exit("torch has no worker server")
dist.init_process_group("gloo")
tensor = torch.ones(1)
for step in range(1, STEPS + 2):
    if step > STEPS:
        load_batch()
    dist.all_reduce(tensor)
    ragent.step(step)
    time.sleep(0.1)
