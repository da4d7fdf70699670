#!/usr/bin/env python3
"""Compares ragent's store with torch's own, in interleaved rounds on the same machine.

    benches/store.py [COMMAND OF OUR SERVER ...]

The command prints the address that it is bound to as its first line. Run it with a Python that
has torch, after `cargo build --release`. Server and load generator each get a CPU of their own.
A ratio above 1 means that ragent is better. The whole run takes less than a minute.

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
ROUNDS = 9
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

    def load(self, op, connections, seconds):
        """Puts a load on this server, and returns the report of it."""
        command = ["taskset", "-c", str(LOAD_CPU), str(LOAD), self.address, op,
                   "--connections", str(connections), "--seconds", str(seconds),
                   "--server-pid", str(self.process.pid)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return json.loads(out.stdout)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Comparison(NamedTuple):
    """One figure of both servers: medians, and the median of the rounds' ratios."""

    op: str
    connections: int
    unit: str
    ours: float
    torch: float
    ratio: float


def compare(ours, rounds=ROUNDS):
    """Starts our server with the command `ours`, and torch's; yields a `Comparison` at a time."""
    servers = []
    try:
        for command in (ours, [sys.executable, "-c", TORCH]):
            servers.append(Server(command))
        # One connection is mostly the kernel's waking of whoever waits, which varies most.
        for n, turns in ((1, 3 * rounds), (64, rounds)):
            for op in EXCHANGES:
                reports = reports_of(servers, op, n, 0.15, turns)
                yield comparison(reports, op, n, "ops_per_s", "op/s", more_is_better=True)
                yield comparison(reports, op, n, "p99_us", "p99 us")
                yield comparison(reports, op, n, "server_cpu_us", "server us/op")
        for op in STRETCHES:
            reports = reports_of(servers, op, 1000, 0.1, rounds)
            yield comparison(reports, op, 1000, "median_ms", "median ms")
            yield comparison(reports, op, 1000, "best_ms", "best ms", average=min)
    finally:
        for server in servers:
            server.stop()


def reports_of(servers, op, connections, seconds, rounds):
    """Puts the same load on each server in turn; returns a pair of reports for each round.

    The turns are short, so that what else the machine does hits both alike.
    """
    return [[server.load(op, connections, seconds) for server in servers] for _ in range(rounds)]


def comparison(reports, op, connections, field, unit, more_is_better=False,
               average=statistics.median):
    pairs = [(ours[field], torch[field]) for ours, torch in reports]
    ratios = [ours / torch if more_is_better else torch / ours for ours, torch in pairs]
    ours, torch = map(average, zip(*pairs))
    return Comparison(op, connections, unit, ours, torch, statistics.median(ratios))


def main():
    print(f"{'':<22} {'':<14} {'ragent':>12} {'torch':>12} {'ratio':>7}")
    for c in compare(sys.argv[1:] or DEFAULT):
        print(f"{f'{c.op} x{c.connections}':<22} {c.unit:<14} {c.ours:>12,.1f} {c.torch:>12,.1f} "
              f"{c.ratio:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
