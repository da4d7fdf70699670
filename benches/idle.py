#!/usr/bin/env python3
"""What a launcher costs while its job runs: memory, and the CPU time of its processes.

    .venv/bin/python benches/idle.py --ragent target/release/ragent [--seconds N] [--launcher NAME ...]

Three agents on loopback with two workers each, to which nothing happens. Memory is resident: with
all pages, many of which are files that other processes map too, and without (`RssAnon`). CPU time
is that of all threads in `--seconds` seconds, as a share of one CPU. Of ragent also a coordinator
alone, with simulated agents.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from elastic import Elastic, tree
from launch import keepers_of
from recovery import ATTEND_LOAD, COMMON, STAMP_WORKER, available
from table import Column, Table

AGENTS = 1000
COLUMNS = [
    Column("process", 44), Column("resident MB", 11, True), Column("of its own MB", 13, True),
    Column("CPU %", 7, True),
]


def measure_job(name, jobs, seconds, table):
    """Prints rows about the processes of a launcher that are no workers."""
    with jobs.job("3", 3) as job:
        workers = {stamp.pid for stamp in job.running(3)}
        host, guest, _ = job.agents
        processes = {}
        for what, agent in (("hosts", host), ("guest", guest)):
            processes[f"{name}, agent, {what}"] = [agent.pid]
            keepers = keepers_of(agent.pid)
            if keepers:
                processes[f"{name}, its keeper"  if what == "guest" else f"{name}, keeper of the host"] = keepers
            rest = [pid for pid in tree(agent.pid) if pid not in {agent.pid, *keepers, *workers}]
            if rest:
                processes[f"{name}, {len(rest)} more processes of it, {what}"] = rest
        time.sleep(2)
        before = {what: cpu_s(pids) for what, pids in processes.items()}
        time.sleep(seconds)
        for what, pids in processes.items():
            used = cpu_s(pids) - before[what]
            table.add(what, mb(pids, "VmRSS"), mb(pids, "RssAnon"), f"{100 * used / seconds:.3f}")
