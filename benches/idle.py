#!/usr/bin/env python3
"""Measures the memory and CPU time of a launcher's processes while its job runs.

    .venv/bin/python benches/idle.py --ragent target/release/ragent [--seconds N] [--markdown]
                                     [--launcher NAME ...]

Three idle agents on loopback with two workers each. Workers do not count. All agents of ragent are
voters; then a job with one voter is measured. Memory is the resident memory, and the part of it that
no file backs (`RssAnon`); pages of a binary are shared by all its processes, and pages that a forked
process shares with its parent count for both. CPU time is that of all threads, as a share of one CPU.
For ragent, a coordinator with 1,000 simulated agents is measured too. It is one of three voters.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

from elastic import Elastic, Launcher, stamp_worker, tree
from launch import keepers_of
from recovery import (
    AGENT_LOAD, RAGENT, STAMP_WORKER, add_common, check_programs, end_orderly, jobs_by_launcher,
)
from table import Column, Table

AGENTS = 1000
# Time for the work after a start to complete.
CALM_S = 2

COLUMNS = [
    Column("processes", 44), Column("resident MB", 11, True), Column("own MB", 8, True),
    Column("CPU %", 7, True),
]


def measure_job(name, jobs, seconds, table):
    """Prints rows about the processes of a launcher."""
    with jobs.job("3", 3) as job:
        workers = {stamp.pid for stamp in job.running(3)}
        time.sleep(CALM_S)
        host, guest, _ = job.agents
        processes = {}
        for what, agent in (("agent that hosts", host), ("agent", guest)):
            keepers = keepers_of(agent.pid)
            others = set(tree(agent.pid)) - {agent.pid, *keepers, *workers}
            processes |= {f"{name}, {what}": [agent.pid], f"{name}, {what}: its keeper": keepers,
                          f"{name}, {what}: {len(others)} more": list(others)}
        processes = {what: pids for what, pids in processes.items() if pids}
        before_s = {what: cpu_s(pids) for what, pids in processes.items()}
        time.sleep(seconds)
        for what, pids in processes.items():
            share = (cpu_s(pids) - before_s[what]) / seconds
            table.add(what, *memory(pids), f"{100 * share:.3f}")


def with_one_voter(ragent):
    """Returns jobs of ragent whose coordinator is not elected."""
    launcher = Launcher.ragent(ragent, shrink_timeout=0, voters=1)
    return Elastic(launcher, stamp_worker(STAMP_WORKER))


def measure_coordinator(ragent, seconds, table):
    """Prints a row about a coordinator with many agents."""
    command = [AGENT_LOAD, "--ragent", ragent, "--agents", str(AGENTS), "--hold", str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=seconds + 90)
    held = json.loads(done.stdout)["held"]
    table.add(f"{RAGENT}, coordinator of {AGENTS:,} agents", f"{held['rss_kb'] / 1e3:.1f}",
              f"{held['rss_anon_kb'] / 1e3:.1f}", f"{100 * held['cpu_s'] / held['seconds']:.3f}")


def memory(pids):
    return [f"{sum(status_kb(pid, field) for pid in pids) / 1e3:.1f}"
            for field in ("VmRSS", "RssAnon")]


def status_kb(pid, field):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise RuntimeError(f"the kernel reports no {field} for process {pid}")


def cpu_s(pids):
    """Returns the CPU time of all threads of some processes."""
    threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def main():
    args = parse_args()
    end_orderly()
    table = Table(COLUMNS, args.markdown)
    for name, jobs in jobs_by_launcher(args).items():
        measure_job(name, jobs, args.seconds, table)
        if name == RAGENT:
            measure_job(f"{RAGENT}, one voter", with_one_voter(args.ragent), args.seconds, table)
            measure_coordinator(args.ragent, args.seconds, table)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common(parser)
    parser.add_argument("--seconds", type=int, default=20, metavar="N",
                        help="how long CPU time is counted (%(default)s)")
    args = parser.parse_args()
    check_programs(parser)
    return args


if __name__ == "__main__":
    main()
