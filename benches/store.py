#!/usr/bin/env python3
"""Compares ragent's store with torch's own, and with a server that only sends answers.

    benches/store.py [COMMAND OF OUR SERVER ...]

The command prints the address that it is bound to as its first line. Run it with a Python that
has torch, after `cargo build --release -p ragent-benches`. Servers and load generator each
have a CPU of their own, and the servers take short turns under the same load. A ratio above 1 means
that ragent is better; it is the median of the ratios of the rounds. A round in which other processes
ran on those CPUs is repeated, for a limited time. A full run takes two and a half minutes, on a busy
machine twice that.

torch's server looks up the name of every peer and is blocked meanwhile: for five seconds and more if
the resolver does not answer. It runs with a resolver timeout of one second; figures of connecting are
valid only if the resolver answers.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parent.parent / "target"))
LOAD = TARGET / "release" / "store_load"
FLOOR = TARGET / "release" / "epoll_floor"
DEFAULT = [str(TARGET / "release" / "store_server")]
TORCH = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"127.0.0.1:{store.port}", flush=True)
sys.stdin.read()
"""
TORCH_CLIENTS = Path(__file__).with_name("torch_clients.py")
SERVER_CPU, LOAD_CPU = (sorted(os.sched_getaffinity(0)) * 2)[:2]
# On the shared CPU, the process started with this runs first; its children do not inherit that.
FIRST = ["chrt", "--reset-on-fork", "--fifo", "1"]
ROUNDS = 9
# The numbers of connections, each with the factor for its rounds. The latency of one connection consists mostly of
# wake-ups by the kernel, which vary most.
CONNECTIONS = {1: 3, 64: 1, 256: 1, 1000: 1, 4000: 1}
EXCHANGES = ("get", "set", "add", "check")
SLICE_S = 0.12
MEASURED = (("connect", 1000), ("init", 10_000), ("wait-fanout", 1000), ("wait-fanout", 4000))
STORM = 4000
# Share of the time in which a process waited for its CPU. Wake-ups alone account for some of it.
DISTURBED = 0.08
# Longest time for which the disturbed rounds of one figure are repeated.
REPEATS_S = 8


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

    def load(self, ops, connections, seconds, first=()):
        """Puts loads on this server one after the other, and returns their reports."""
        command = [*first, "taskset", "-c", str(LOAD_CPU), str(LOAD), self.address, ",".join(ops),
                   "--connections", str(connections), "--seconds", str(seconds),
                   "--server-pid", str(self.process.pid)]
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90)
        return [json.loads(line) for line in out.stdout.splitlines()]

    def cpu_us(self):
        """Returns the CPU time that the server has used."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3

    def stop(self):
        self.process.kill()
        self.process.wait()


class Comparison(NamedTuple):
    """One figure of all servers: medians, and the medians of the rounds' ratios."""

    op: str
    connections: int
    unit: str
    ours: float
    torch: float
    ratio: float
    floor: float | None = None
    to_floor: float | None = None


def compare(ours, rounds=ROUNDS):
    """Starts our server with the command `ours`, and the others. Yields `Comparison`s.

    The operation `all` is every exchange together, in equal shares of the time.
    """
    servers = []
    try:
        for command in (ours, [sys.executable, "-c", TORCH], [str(FLOOR)]):
            servers.append(Server(command))
        for connections, times in CONNECTIONS.items():
            yield from exchanges(servers, connections, times * rounds)
        for op, connections in MEASURED:
            yield from measurements(servers, op, connections, rounds)
        yield from storm(servers, rounds)
        yield from torch_clients(servers[:2], rounds)
    finally:
        for server in servers:
            server.stop()


def exchanges(servers, connections, rounds):
    fields = (("ops_per_s", "op/s", True), ("p50_us", "p50 us", False), ("p99_us", "p99 us", False),
              ("server_cpu_us", "server us/op", False))
    reports = calm(rounds, lambda: [server.load(EXCHANGES, connections, SLICE_S)
                                    for server in servers])
    for n, op in enumerate(EXCHANGES):
        of_op = [[report[n] for report in round] for round in reports]
        yield from (comparison(of_op, op, connections, *field) for field in fields)
    together = [[mean(report) for report in round] for round in reports]
    yield from (comparison(together, "all", connections, *field) for field in fields)


def calm(rounds, round):
    """Calls `round` `rounds` times. Disturbed rounds are repeated, for a limited time."""
    done = []
    end = None
    for n in range(2 * rounds):
        if n == rounds:
            end = time.monotonic() + REPEATS_S
        if end and time.monotonic() > end:
            break
        reports = round()
        done.append((max(report["disturbed"] for of_one in reports for report in of_one), n, reports))
        if sum(disturbed < DISTURBED for disturbed, *_ in done) == rounds:
            break
    return [reports for *_, reports in sorted(done)[:rounds]]


def mean(reports):
    """Merges reports. The CPU time is weighted by the number of requests."""
    total = sum(report["ops_per_s"] for report in reports)
    cpu = sum(report["server_cpu_us"] * report["ops_per_s"] for report in reports) / total
    quantiles = {name: statistics.mean(report[name] for report in reports)
                 for name in ("p50_us", "p99_us")}
    return {"ops_per_s": total / len(reports), "server_cpu_us": cpu} | quantiles


def measurements(servers, op, connections, rounds):
    reports = calm(rounds, lambda: [server.load([op], connections, 0) for server in servers])
    reports = [[report for [report] in round] for round in reports]
    yield comparison(reports, op, connections, "median_ms", "median ms")
    yield comparison(reports, op, connections, "median_ms", "best ms", average=min)
    if op == "wait-fanout":
        yield comparison(reports, op, connections, "server_cpu_us", "server us/op")


def storm(servers, rounds):
    """One client sends requests while the others connect. It has precedence over them on the CPU
    that they share, so that only the server can delay it."""
    first = FIRST if may_go_first() else ()
    reports = calm(rounds, lambda: [server.load(["storm"], STORM, 0.3, first)
                                    for server in servers])
    reports = [[report for [report] in round] for round in reports]
    for field in ("calm_p99_us", "storm_p99_us", "storm_worst_us"):
        yield comparison(reports, "storm", STORM, field, field.removesuffix("_us") + " us")


def may_go_first():
    return subprocess.run([*FIRST, "true"], capture_output=True).returncode == 0


def torch_clients(servers, rounds):
    """Compares with real clients, whose own work takes most of the time."""
    clients = subprocess.Popen(
        ["taskset", "-c", str(LOAD_CPU), sys.executable, TORCH_CLIENTS,
         *(server.address for server in servers)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"RES_OPTIONS": "timeout:1 attempts:1"},
    )
    try:
        clients.stdout.readline()
        reports = []
        for _ in range(rounds):
            reports.append([])
            for n, server in enumerate(servers):
                before = server.cpu_us()
                print(n, 3 * SLICE_S, file=clients.stdin, flush=True)
                report = json.loads(clients.stdout.readline())
                cpu_us = (server.cpu_us() - before) / report["ops"]
                reports[-1].append(report | {"server_cpu_us": cpu_us})
        yield comparison(reports, "torch's clients", 4, "ops_per_s", "op/s", more_is_better=True)
        yield comparison(reports, "torch's clients", 4, "server_cpu_us", "server us/op")
    finally:
        clients.stdin.close()
        clients.wait(timeout=10)


def comparison(reports, op, connections, field, unit, more_is_better=False,
               average=statistics.median):
    ours, *others = zip(*[[report[field] for report in round] for round in reports])

    def ratio(theirs):
        pairs = zip(ours, theirs)
        return statistics.median([a / b if more_is_better else b / a for a, b in pairs])

    both = (value for theirs in others for value in (average(theirs), ratio(theirs)))
    return Comparison(op, connections, unit, average(ours), *both)


def main():
    heads = ("ragent", "torch", "ratio", "floor", "ratio")
    print(f"{'':<22} {'':<13}" + "".join(f"{head:>11}" for head in heads))
    for c in compare(sys.argv[1:] or DEFAULT):
        cells = [f"{c.ours:,.1f}", f"{c.torch:,.1f}", f"{c.ratio:.2f}"]
        if c.floor is not None:
            cells += [f"{c.floor:,.1f}", f"{c.to_floor:.2f}"]
        print(f"{f'{c.op} x{c.connections}':<22} {c.unit:<13}"
              + "".join(f"{cell:>11}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
