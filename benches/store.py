#!/usr/bin/env python3
"""Compares ragent's store with torch's own, in interleaved rounds on the same machine.

    benches/store.py [COMMAND OF OUR SERVER ...]

The command prints the address that it is bound to as its first line. Run it with a Python that
has torch, after `cargo build --release`. Server and load generator each get a CPU of their own.
A ratio above 1 means that ragent is better. The whole run takes less than two minutes.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parent.parent / "target"))
LOAD = TARGET / "release" / "store_load"
DEFAULT = [str(TARGET / "release" / "ragent"), "store", "--host", "127.0.0.1", "--port", "0"]
TORCH = """
import os, sys, torch.distributed as dist
from datetime import timedelta
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"127.0.0.1:{store.port}", flush=True)
sys.stdin.read()
"""
SERVER_CPU, LOAD_CPU = (sorted(os.sched_getaffinity(0)) * 2)[:2]
ROUNDS = 5
EXCHANGES = [(op, n) for op in ("get", "set", "add", "check") for n in (1, 64)]
STRETCHES = [("connect", 1000), ("wait-fanout", 1000)]


class Server:
    """A server process and the address it serves on."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CPU), *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            sys.exit(f"`{shlex.join(command)}` printed no address")

    def load(self, op, connections, seconds):
        command = ["taskset", "-c", str(LOAD_CPU), str(LOAD), self.address, op,
                   str(connections), str(seconds), "--server-pid", str(self.process.pid)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return json.loads(out.stdout)

    def stop(self):
        self.process.kill()
        self.process.wait()


def compare(servers, op, connections, seconds):
    """Runs the same load on each server in turn; returns the reports of each."""
    reports = {name: [] for name in servers}
    for _ in range(ROUNDS):
        for name, server in servers.items():
            reports[name].append(server.load(op, connections, seconds))
    return reports


def median(reports, name, field):
    return statistics.median(report[field] for report in reports[name])


def row(label, unit, ours, torch, better_is_more):
    ratio = ours / torch if better_is_more else torch / ours
    print(f"{label:<22} {unit:<14} {ours:>12,.1f} {torch:>12,.1f} {ratio:>7.2f}", flush=True)


def main():
    ours = sys.argv[1:] or DEFAULT
    servers = {"ours": Server(ours), "torch": Server([sys.executable, "-c", TORCH])}
    print(f"{'':<22} {'median':<14} {'ragent':>12} {'torch':>12} {'ratio':>7}")
    try:
        for op, n in EXCHANGES:
            reports = compare(servers, op, n, 0.7)
            for field, unit, more in (("ops_per_s", "op/s", True), ("p99_us", "p99 us", False),
                                      ("server_cpu_us", "server us/op", False)):
                row(f"{op} x{n}", unit, median(reports, "ours", field),
                    median(reports, "torch", field), more)
        for op, n in STRETCHES:
            reports = compare(servers, op, n, 0.5)
            for field, unit in (("median_ms", "ms"), ("best_ms", "best ms")):
                row(f"{op} x{n}", unit, median(reports, "ours", field),
                    median(reports, "torch", field), False)
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    main()
