#!/usr/bin/env python3
"""Runs a job without faults on a busy machine, and reports further rounds and takeovers: there should be none.

    .venv/bin/python benches/steady.py --ragent target/release/ragent [--minutes N] [--hogs N]

Three agents with three voters run on loopback. Next to them run processes that only use CPU time; with
`--hogs 0`, only other programs load the machine.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from elastic import Elastic, Launcher, stamp_worker
from recovery import RAGENT_DEFAULT, STAMP_WORKER, VOTERS, end_orderly, status, wait_for_voters

HOG = [sys.executable, "-c", "while True: pass"]
# Interval at which progress is printed.
PROGRESS_S = 60


def measure(jobs, seconds):
    """Runs a job for `seconds`. Returns true if it has neither another round nor another coordinator."""
    with jobs.job("2:3", VOTERS) as job:
        wait_for_voters(job, VOTERS)
        first, begin, used = status(job), time.monotonic(), cpu_times()
        while (left_s := begin + seconds - time.monotonic()) > 0:
            time.sleep(min(left_s, PROGRESS_S))
            now, minutes = status(job), (time.monotonic() - begin) / 60
            takeovers = "no takeover" if now["term"] == first["term"] else "a takeover"
            print(f"{minutes:.0f} min: {now['round'] - first['round']} further rounds, {takeovers}, "
                  f"CPU in use {busy_since(used):.0%}", flush=True)
        return now["term"] == first["term"] and now["round"] == first["round"]


def cpu_times():
    """Returns the time that the CPUs were in use, and all time."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def busy_since(before):
    busy, total = (now - then for now, then in zip(cpu_times(), before, strict=True))
    return busy / max(total, 1)


def main():
    args = parse_args()
    end_orderly()
    jobs = Elastic(Launcher.ragent(args.ragent), stamp_worker(STAMP_WORKER))
    hogs = [subprocess.Popen(HOG) for _ in range(args.hogs)]
    try:
        is_steady = measure(jobs, args.minutes * 60)
    finally:
        for hog in hogs:
            hog.send_signal(signal.SIGKILL)
            hog.wait()
    sys.exit(0 if is_steady else 1)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default=RAGENT_DEFAULT, metavar="PATH",
                        type=lambda path: str(Path(path).resolve()), help="the binary under test (%(default)s)")
    parser.add_argument("--minutes", type=float, default=60, metavar="N",
                        help="duration of the job (%(default)s)")
    parser.add_argument("--hogs", type=int, default=2 * os.cpu_count(), metavar="N",
                        help="processes that only use CPU time (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
