#!/usr/bin/env -S python3 -IS
"""Records the time since boot, in nanoseconds, at its start and every 10 ms, in $SCRATCH/alive.PID, until it
is killed. The clock is the same in all namespaces of a machine."""

import os
import time


def record(file):
    file.write(f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\n")
    file.flush()


with open(f"{os.environ['SCRATCH']}/alive.{os.getpid()}", "x") as file:
    record(file)
    print(f"worker rank={os.environ['RANK']} pid={os.getpid()} alive", flush=True)
    while True:
        time.sleep(0.01)
        record(file)
