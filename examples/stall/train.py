"""A job that stands still: after some quick steps on gloo, one rank does not come to a collective for a while."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist

import ragent


def load_batch(step: int, options: argparse.Namespace) -> None:
    """Stands for a data loader. In one step, it takes far too long on one rank."""
    if step > options.steps and dist.get_rank() == options.rank:
        time.sleep(options.seconds)


def say(text: str) -> None:
    """Prints a line in one piece. Python writes the end of a line separately, and another rank could write in between."""
    print(f"{text}\n", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="the number of steps before the slow one")
    parser.add_argument("--rank", type=int, default=2, help="the rank that is slow")
    parser.add_argument("--seconds", type=float, default=3600, help="how long it is slow, in seconds")
    parser.add_argument("--observe", action="store_true", help="start torch's worker server")
    options = parser.parse_args()
    if options.observe and not ragent.observe():
        sys.exit("failed to start torch's worker server: start this script with ragent, and use torch 2.5 or newer")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    say(f"rank={rank} pid={os.getpid()}")
    gradient = torch.ones(1)
    for step in range(1, options.steps + 2):
        load_batch(step, options)
        dist.all_reduce(gradient)
        ragent.step(step)
        if rank == 0 and step % 20 == 0:
            say(f"step={step}")
        time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
