"""Takes training steps together with all other ranks on gloo, until it is killed.

Prints a line for the first step and for every hundredth one: a line means that all ranks of the round
have taken that step.
"""

import os
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    gradient = torch.ones(1)
    for step in range(1_000_000):
        gradient.fill_(rank)
        dist.all_reduce(gradient)
        assert int(gradient) == size * (size - 1) // 2
        if step % 100 == 0:
            line = f"stepping rank={rank} world_size={size} restart={restart} pid={os.getpid()}\n"
            os.write(1, line.encode())
        time.sleep(0.01)


if __name__ == "__main__":
    main()
