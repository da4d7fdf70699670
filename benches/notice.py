"""Sends SIGTERM to one of three agents whose workers train, and measures what the others lose.

Workers are `digits_worker.py`, which saves a checkpoint every 4 s and does nothing special on SIGTERM. With
`--notice`, ragent lets all ranks save before the node leaves. torchrun passes SIGTERM on to the workers of that node.
`run.py --only notice` prints the figures.
"""

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from elastic import WORKERS_PER_NODE, Elastic, Launcher, NotRunning, Worker

DIGITS_WORKER = Path(__file__).resolve().with_name("digits_worker.py")
NODES, WORKERS = 3, 3 * WORKERS_PER_NODE
NOTICE_S = 20
# About as long as an epoch, which has 240 steps. All nodes have one working folder.
WORDS = [str(DIGITS_WORKER), "--folder", ".", "--save-every", "4", "--epochs", "100000", "--batch-size", "6"]
ENV = {"PYTHON_EXEC": sys.executable, "GLOO_SOCKET_IFNAME": "lo"}
# Checkpoints before the signal, which comes half an epoch after the last one.
CALM_EPOCHS = 2
LIMIT_S = 120
LOOK_S = 0.2


class Line(NamedTuple):
    """A step that a worker has made, or a checkpoint that it has written."""

    at_ns: int
    workers: int
    step: int
    is_saved: int


class Stop(NamedTuple):
    """What a SIGTERM to an agent has cost. Times are in milliseconds."""

    # Steps of the old round after its last checkpoint, which the next round does again.
    redone: int
    # From the signal until the first checkpoint of the next round; text if there is none.
    epoch_ms: float | str
    # From the signal until the coordinator's event `notice_over`, and from the checkpoint until then. Of ragent alone.
    saved_ms: float | None = None
    report_ms: float | None = None


def of_ragent(program):
    return Elastic(Launcher.ragent(program, "--notice", str(NOTICE_S), "--journal", "journal", shrink_timeout=0),
                   Worker(WORDS, ENV))


def of_torchrun(program):
    return Elastic(Launcher.torchrun(program), Worker(WORDS, ENV))


def stops(jobs, times):
    """Stops one of three nodes in each of `times` jobs. Yields what that has cost."""
    for _ in range(times):
        with jobs.no_agents("2:3") as job:
            job.start_host()
            for _ in range(NODES - 1):
                job.start_agent()
            *_, before, last = wait_for_saves(job, WORKERS, CALM_EPOCHS)
            due_ns = last.at_ns + (last.at_ns - before.at_ns) / 2
            time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            at_ns = time.monotonic_ns()
            job.agents[-1].terminate()
            yield outcome(job, at_ns)


def outcome(job, at_ns):
    """Waits until the others have trained another epoch, and returns what the signal has cost."""
    try:
        first, *_ = wait_for_saves(job, WORKERS - WORKERS_PER_NODE, 1, at_ns)
        epoch_ms = (first.at_ns - at_ns) / 1e6
    except NotRunning as why:
        epoch_ms = f"{'over after' if why.is_over else 'never in'} {why.after_s:.0f} s"
    old = [line for line in lines(job) if line.workers == WORKERS]
    saved = max((line for line in old if line.is_saved), key=lambda line: line.step)
    redone = max(line.step for line in old) - saved.step
    if "--notice" not in job.launcher.flags:
        return Stop(redone, epoch_ms)
    over_ns = notice_over_ns(job, saved.step)
    return Stop(redone, epoch_ms, (over_ns - at_ns) / 1e6, (over_ns - saved.at_ns) / 1e6)


def wait_for_saves(job, workers, count, since_ns=0):
    """Waits for `count` checkpoints of a round with `workers` workers, and returns all of them."""
    begin = time.monotonic()
    while True:
        saves = [line for line in lines(job)
                 if line.is_saved and line.workers == workers and line.at_ns > since_ns]
        if len(saves) >= count:
            return saves
        after_s, is_over = time.monotonic() - begin, job.is_over()
        if is_over or after_s > LIMIT_S:
            raise NotRunning(after_s, is_over, f"{len(saves)} of {count} checkpoints are there")
        time.sleep(LOOK_S)


def lines(job):
    """Returns all that the workers have written so far."""
    return [Line(*map(int, line.split())) for line in complete_lines(job.folder / "steps")]


def notice_over_ns(job, step):
    """Returns the time of the coordinator's event that all ranks have saved `step` for the notice."""
    for line in complete_lines(job.folder / "journal"):
        event = json.loads(line)
        if event["kind"] == "notice_over" and event["data"]["step"] == step:
            since_epoch_ns = datetime.fromisoformat(event["at"]).timestamp() * 1e9
            return since_epoch_ns - (time.time_ns() - time.monotonic_ns())
    raise RuntimeError(f"the job has not saved step {step} for the notice")


def complete_lines(path):
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
