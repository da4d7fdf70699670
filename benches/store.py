#!/usr/bin/env python3
"""Compares ragent's store with torch's own, in interleaved rounds on the same machine.

    benches/store.py [COMMAND OF OUR SERVER ...]

The command prints the address that it is bound to as its first line. Run it with a Python that
has torch, after `cargo build --release`. Server and load generator each get a CPU of their own.
A ratio above 1 means that ragent is better. The whole run takes less than two minutes.

torch's server looks up the name of every peer and stands still meanwhile: five seconds and more,
where the resolver does not answer. It is given a resolver that gives up after one, and `connect`
shows the best round beside the median.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parent.parent / "target"))
LOAD = TARGET / "release" / "store_load"
DEFAULT = [str(TARGET / "release" / "ragent"), "store", "--host", "127.0.0.1", "--port", "0"]
TORCH = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"127.0.0.1:{store.port}", flush=True)
sys.stdin.read()
"""
SERVER_CPU, LOAD_CPU = (sorted(os.sched_getaffinity(0)) * 2)[:2]
ROUNDS = 3
EXCHANGES = ("get", "set", "add", "check")
STRETCHES = ("connect", "wait-fanout")


class Server:
    """A server process and the address it serves on."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CPU), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"RES_OPTIONS": "timeout:1 attempts:1"},
        )
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            sys.exit(f"`{shlex.join(command)}` printed no address")

    def load(self, ops, connections, seconds):
        """Returns a report for each of `ops`."""
        command = ["taskset", "-c", str(LOAD_CPU), str(LOAD), self.address, ','.join(ops),
                   "--connections", str(connections), "--seconds", str(seconds),
                   "--server-pid", str(self.process.pid)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return [json.loads(line) for line in out.stdout.splitlines()]

    def stop(self):
        self.process.kill()
        self.process.wait()


class Comparison(NamedTuple):
    """One figure of both servers."""

    op: str
    connections: int
    unit: str
    ours: float
    torch: float
    more_is_better: bool

    @property
    def ratio(self):
        """How many times better ours is."""
        return self.ours / self.torch if self.more_is_better else self.torch / self.ours


def compare(ours, rounds=ROUNDS):
    """Starts our server with the command `ours`, and torch's; yields a `Comparison` at a time."""
    servers = {}
    try:
        servers["ours"] = Server(ours)
        servers["torch"] = Server([sys.executable, "-c", TORCH])
        for n in (1, 64):
            reports = reports_of(servers, EXCHANGES, n, 0.5, rounds)
            for op in EXCHANGES:
                for field, unit, more in (("ops_per_s", "op/s", True), ("p99_us", "p99 us", False),
                                          ("server_cpu_us", "server us/op", False)):
                    yield comparison(reports, op, n, field, unit, statistics.median, more)
        reports = reports_of(servers, STRETCHES, 1000, 0.2, rounds)
        for op in STRETCHES:
            yield comparison(reports, op, 1000, "median_ms", "median ms", statistics.median, False)
            yield comparison(reports, op, 1000, "best_ms", "best ms", min, False)
    finally:
        for server in servers.values():
            server.stop()


def reports_of(servers, ops, connections, seconds, rounds):
    """Puts the same loads on each server in turn; returns the reports by server and operation."""
    reports = {(name, op): [] for name in servers for op in ops}
    for _ in range(rounds):
        for name, server in servers.items():
            for op, report in zip(ops, server.load(ops, connections, seconds), strict=True):
                reports[name, op].append(report)
    return reports


def comparison(reports, op, connections, field, unit, average, more_is_better):
    ours, torch = (average([report[field] for report in reports[name, op]])
                   for name in ("ours", "torch"))
    return Comparison(op, connections, unit, ours, torch, more_is_better)


def main():
    print(f"{'':<22} {'':<14} {'ragent':>12} {'torch':>12} {'ratio':>7}")
    for c in compare(sys.argv[1:] or DEFAULT):
        print(f"{f'{c.op} x{c.connections}':<22} {c.unit:<14} {c.ours:>12,.1f} {c.torch:>12,.1f} "
              f"{c.ratio:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
