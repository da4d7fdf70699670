#!/usr/bin/env python3
"""Allocates most of the memory of the first GPU, and after a restart as many bytes as before.

The first process waits to be killed; the second one succeeds.
"""

import os
import signal
from pathlib import Path

import torch

# What is left is enough for the CUDA context of one process, and not for a second allocation.
SHARE = 0.8


def main():
    record = Path(os.environ["SCRATCH"]) / "held_bytes"
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if restart == "0":
        free, _ = torch.cuda.mem_get_info(0)
        record.write_text(str(int(free * SHARE)))
    size = int(record.read_text())
    held = torch.ones(size, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    os.write(1, f"holds restart={restart} bytes={held.numel()} pid={os.getpid()}\n".encode())
    if restart == "0":
        signal.pause()


if __name__ == "__main__":
    main()
