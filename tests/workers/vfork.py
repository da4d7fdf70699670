#!/usr/bin/env python3
"""Waits in a state that only SIGKILL can interrupt: for a child of vfork, which opens a pipe without a
writer before its exec."""

import os

if "LIFELINE" in os.environ:
    os.set_inheritable(os.open(os.environ["LIFELINE"], os.O_RDWR), True)
pipe = f"{os.environ['SCRATCH']}/never.{os.environ['RANK']}"
os.mkfifo(pipe)
print(f"worker rank={os.environ['RANK']} local_rank={os.environ['LOCAL_RANK']} pid={os.getpid()}",
      flush=True)
os.posix_spawn("/bin/true", ["true"], os.environ,
               file_actions=[(os.POSIX_SPAWN_OPEN, 0, pipe, os.O_RDONLY, 0)])
