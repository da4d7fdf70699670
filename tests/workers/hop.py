#!/usr/bin/env python3
"""Starts eight processes that change their pid: each forks and exits, again and again, in a session of
its own. They stop by themselves after a minute."""

import os
import time

# Held open by all of them, in both directions because a reader may be missing.
if "LIFELINE" in os.environ:
    os.set_inheritable(os.open(os.environ["LIFELINE"], os.O_RDWR), True)
until = time.monotonic() + 60
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        while time.monotonic() < until:
            if os.fork() != 0:
                os._exit(0)
        os._exit(0)
print(f"worker rank={os.environ['RANK']} local_rank={os.environ['LOCAL_RANK']} pid={os.getpid()}",
      flush=True)
time.sleep(60)
