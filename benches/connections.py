#!/usr/bin/env python3
"""Counts the connections that the agents of a job open to each other.

    .venv/bin/python benches/connections.py --ragent target/release/ragent [--agents N] [--seconds N] [--markdown]

Run it as root: it creates a network namespace, so that the counter of the kernel has only these connections. All agents run on
loopback with one worker each; the endpoint is one listed host. The first row counts in a running job, the second one from the
kill of the leading agent until 5 s after all others run again.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from elastic import Elastic, Launcher, Worker
from recovery import RAGENT_DEFAULT, STAMP_WORKER, check_programs, end_orderly
from table import Column, Table

COLUMNS = [Column("what happens", 44), Column("agents", 7, True), Column("connections", 12, True),
           Column("per agent and second", 20, True)]
# Time for the work after a start to complete.
CALM_S = 5
# The variable that marks the process inside the namespace.
INSIDE = "BENCH_CONNECTIONS_INSIDE"


def accepted():
    """Returns the number of connections that were accepted in this network namespace."""
    names, values = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines()
                     if line.startswith("Tcp:")]
    return int(dict(zip(names, values))["PassiveOpens"])


def measure(jobs, agents, seconds, table):
    """Prints the rows of a job."""
    with jobs.job(f"2:{agents}", agents) as job:
        time.sleep(CALM_S)
        before = accepted()
        time.sleep(seconds)
        add(table, "running job", agents, accepted() - before, seconds)
        before = accepted()
        killed_ns = job.kill_agent(job.agents[0])
        job.running(agents - 1, killed_ns)
        time.sleep(CALM_S)
        took_s = (time.monotonic_ns() - killed_ns) / 1e9
        add(table, "leader killed", agents, accepted() - before, took_s)


def add(table, what, agents, count, seconds):
    table.add(what, str(agents), str(count), f"{count / seconds / agents:.2f}")


def main():
    args = parse_args()
    end_orderly()
    if INSIDE not in os.environ:
        inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh",
                  sys.executable, *sys.argv]
        sys.exit(subprocess.run(inside, env=os.environ | {INSIDE: "1"}).returncode)
    launcher = Launcher.ragent(args.ragent, shrink_timeout=0, last_call_timeout=5)
    jobs = Elastic(launcher, Worker(["--no-python", str(STAMP_WORKER)], per_node=1))
    measure(jobs, args.agents, args.seconds, Table(COLUMNS, args.markdown))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default=RAGENT_DEFAULT, metavar="PATH",
                        type=lambda path: str(Path(path).resolve()),
                        help="the binary under test (target/release/ragent)")
    parser.add_argument("--agents", type=int, default=40, metavar="N",
                        help="number of agents (%(default)s)")
    parser.add_argument("--seconds", type=int, default=20, metavar="N",
                        help="how long connections are counted (%(default)s)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    args = parser.parse_args()
    check_programs(parser)
    return args


if __name__ == "__main__":
    main()
