#!/usr/bin/env python3
"""Measures checkpoints in memory: what a `save` costs, and how soon workers train again.

    .venv/bin/python benches/memory.py --ragent target/release/ragent [--times N]

1. A worker saves a GiB of tensors of the CPU, again and again, and copies it with a bare `copy_` in between.
2. With a second agent, in another network namespace, and a secret: the time from the call of `save` until the step is whole. It
   includes the checksum, and the copy to the other agent over TLS with its checks.
3. One of two workers is killed, each with 300 MB in memory and with a standby. The same job with `--memory-limit 0` is killed
   in turn, so that workers have nothing to load.
4. The agent of one of two nodes is killed, and a spare takes its place: it fetches 300 MB from the other node over TLS. The same job with
   `--memory-limit 0` in turn, as before.

Needs `cargo build --release -p ragent`, a Python with torch, 8 GB of memory, and root for the namespaces. The checksum of a GiB takes
a minute in a debug build: give it less by `--mib 64 --mb 30`.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

from elastic import Launcher, Worker, since
from namespaces import in_node, network
from standby import ENV, HANG_TIMEOUT_S, TrainingJob, wait
from table import Column, Table

MEMORY_WORKER = Path(__file__).resolve().with_name("memory_worker.py")
MODULE = MEMORY_WORKER.parents[1] / "packaging" / "python"
SAVED_MIB, SAVES = 1024, 6
# The agent makes the pages of its buffers in the first saves.
WARM_UP = 2
TRAINED_MB, WORKERS = 300, 2
LIMIT_S = 120


class OnHosts(TrainingJob):
    """A job of two agents with a secret, each in a network namespace and under a host name of its own."""

    def spawn(self, command, log):
        node = len(self.agents) + 1
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"host{node}"]
        return super().spawn([*in_node(node, *named), *command], log)

    def start_host(self):
        secret = self.folder / "secret"
        ragent = self.launcher.program
        subprocess.run([ragent, "secret", "--init", "--secret-file", secret], check=True, stdout=subprocess.DEVNULL)
        self.endpoint = f"10.78.0.1:{self.port}"
        for _ in range(2):
            self.start_member()

    def start_member(self):
        self.start_agent("--secret-file", str(self.folder / "secret"))


@contextmanager
def job(ragent, words, per_node, *flags, nodes=1):
    """Starts a job whose workers save in memory."""
    environment = ENV | {"PYTHONPATH": str(MODULE), "GLOO_SOCKET_IFNAME": "lo" if nodes == 1 else "eth0"}
    launcher = Launcher.ragent(ragent, "--log-format", "json", "--hang-timeout", str(HANG_TIMEOUT_S), *flags)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, network() if nodes > 1 else nullcontext():
        worker = Worker([str(MEMORY_WORKER), *map(str, words)], environment, per_node)
        started = (TrainingJob if nodes == 1 else OnHosts)(launcher, worker, str(nodes), Path(folder))
        try:
            started.start_host()
            yield started
        finally:
            started.end()


def lines(path):
    """Returns the complete lines of a file that a worker writes."""
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []


def saves_ms(ragent, mib=SAVED_MIB, saves=SAVES, nodes=1):
    """Returns the times of `save`, until the step is whole, and of a bare `copy_` of the same tensors."""
    with job(ragent, ("copy", mib, saves), 1, "--standby=none", nodes=nodes) as running:
        running.agents[0].wait(LIMIT_S)
        times = [tuple(map(float, line.split())) for line in lines(running.folder / "figures")]
    if len(times) < saves:
        raise RuntimeError(f"the worker has saved {len(times)} times, not {saves}")
    return [[seconds * 1e3 for seconds in each] for each in zip(*times[WARM_UP:], strict=True)]


def kills_ms(ragent, megabytes, has_memory, pauses):
    """Kills a worker twice. Yields each time until both have made a step."""
    flags = [] if has_memory else ["--memory-limit", "0"]
    with job(ragent, ("train", megabytes), WORKERS, "--standby", *flags) as running:
        group = running.running(1)
        for kill in range(1, 3):
            wait("the step is safe", lambda kill=kill: len(lines(running.folder / "whole")) == kill * WORKERS)
            running.wait_for_standbys(WORKERS)
            time.sleep(pauses.uniform(0.5, 1))
            killed_ns = time.monotonic_ns()
            os.kill(pauses.choice(group).pid, signal.SIGKILL)
            group = running.running(1, killed_ns, LIMIT_S)
            running.check_starts(group, are_standbys=True)
            yield since(killed_ns, group)


def restarts_ms(ragent, times, megabytes=TRAINED_MB):
    """Returns the times with memory and without, from jobs in turn."""
    pauses = random.Random(1)
    with_memory, without = [], []
    for _ in range(times):
        with_memory += kills_ms(ragent, megabytes, True, pauses)
        without += kills_ms(ragent, megabytes, False, pauses)
    return with_memory, without


def loss_ms(ragent, megabytes, has_memory, pauses):
    """Kills the agent of a node that does not host the job. Returns the time until a spare and the other node have made a step."""
    flags = [] if has_memory else ["--memory-limit", "0"]
    with job(ragent, ("train", megabytes), 1, "--standby", *flags, nodes=2) as running:
        running.running(2)
        running.start_member()
        wait("the step is safe", lambda: len(lines(running.folder / "whole")) == 2)
        running.wait_for_standbys(3)
        time.sleep(pauses.uniform(0.5, 1))
        killed_ns = running.kill_agent(running.agents[1])
        group = running.running(2, killed_ns, LIMIT_S)
        running.check_starts(group, are_standbys=True)
        return since(killed_ns, group)


def losses_ms(ragent, times, megabytes=TRAINED_MB):
    """Returns the times with memory and without, from jobs in turn."""
    pauses = random.Random(2)
    both = [(loss_ms(ragent, megabytes, True, pauses), loss_ms(ragent, megabytes, False, pauses)) for _ in range(times)]
    return list(zip(*both, strict=True))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default="target/release/ragent", metavar="PATH", help="the program (%(default)s)")
    parser.add_argument("--mib", type=int, default=SAVED_MIB, metavar="MIB", help="the size of what is saved (%(default)s)")
    parser.add_argument("--mb", type=int, default=TRAINED_MB, metavar="MB", help="the size of what a killed worker has saved (%(default)s)")
    parser.add_argument("--times", type=int, default=3, metavar="N", help="jobs of each kind in which something is killed (%(default)s)")
    return parser.parse_args()


def main():
    args = parse_args()
    ragent = str(Path(args.ragent).resolve())
    print(f"load average {os.getloadavg()[0]:.1f}\n")
    table = Table([Column("figure", 52), Column("ms", 8, True), Column("worst", 8, True), Column("compared", 9, True),
                   Column("ratio", 6, True)])
    saves, alone, copies = saves_ms(ragent, args.mib)
    for what, ours, others in (
        (f"save of {args.mib} MiB; a bare copy_", saves, copies),
        ("  whole, with a copy on another host; without", saves_ms(ragent, args.mib, nodes=2)[1], alone),
        (f"worker killed, first step, {args.mb} MB; without memory", *restarts_ms(ragent, args.times, args.mb)),
        (f"node lost, spare fetches {args.mb} MB; without memory", *losses_ms(ragent, args.times, args.mb)),
    ):
        median, other = statistics.median(ours), statistics.median(others)
        table.add(what, f"{median:.0f}", f"{max(ours):.0f}", f"{other:.0f}", f"{median / other:.2f}")


if __name__ == "__main__":
    main()
