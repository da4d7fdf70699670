#!/usr/bin/env python3
"""Measures what `--store-access user` adds to a connection to the store of a round.

    sudo benches/store_access.py --ragent target/release/ragent [--clients N]

Three agents in network namespaces. Clients on the second and the third connect to the store of the
first, one after the other and then all at once, and send a ping; each waits for its answer.
"""

import argparse
import asyncio
import contextlib
import os
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GREETING = b"\0" + struct.pack("<I", 0x3C85F7CE)
PING, PONG = b"\x0dpong", b"pong"
SINGLE = 200
NODES = 3
# An address may have 1,024 connections that wait.
PER_ADDRESS = 1000
PATIENCE_S = 120
PREFIX = f"rv{os.getpid()}"


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def in_node(node, *words):
    return ["ip", "netns", "exec", f"{PREFIX}n{node}", *words]


def addresses(node, count):
    return [f"10.78.{number}.{node}" for number in range(count)]


@contextlib.contextmanager
def network(count):
    """Connects namespaces through a bridge. Each has `count` addresses."""
    hub = f"{PREFIX}hub"
    made = []
    try:
        for name in (hub, *(f"{PREFIX}n{node}" for node in range(1, NODES + 1))):
            run("ip", "netns", "add", name)
            made.append(name)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for node in range(1, NODES + 1):
            name = f"{PREFIX}n{node}"
            run("ip", "-n", hub, "link", "add", f"port{node}", "type", "veth",
                "peer", "name", "eth0", "netns", name)
            run("ip", "-n", hub, "link", "set", f"port{node}", "master", "bridge", "up")
            for address in addresses(node, count):
                run("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in made:
            run("ip", "netns", "delete", name)


@contextlib.contextmanager
def job(ragent, access, workers, folder):
    """Runs a job with `workers` on each node. Yields the port of its store."""
    agents = []
    try:
        for node in range(1, NODES + 1):
            log = (folder / f"{access}{node}.log").open("w")
            state = Path(tempfile.mkdtemp(dir=folder))
            words = [ragent, "--nnodes", str(NODES), "--rdzv-endpoint", "10.78.0.1:29400", "--auth", "none",
                     "--store-access", access, "--local-addr", f"10.78.0.{node}",
                     "--nproc-per-node", str(workers), "--no-python", "sleep", "600"]
            agents.append(subprocess.Popen(in_node(node, *words), stdout=log, stderr=log,
                                           env={**os.environ, "XDG_RUNTIME_DIR": str(state)}))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = re.search(r"master 10\.78\.0\.1:(\d+)", (folder / f"{access}1.log").read_text())
            if found:
                break
            if deadline < time.monotonic():
                sys.exit(f"the job did not start: {folder / f'{access}1.log'}")
            time.sleep(0.05)
        yield int(found[1])
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait(PATIENCE_S)


async def one(port, source):
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("10.78.0.1", port, local_addr=(source, 0))
    writer.write(GREETING + PING)
    assert await reader.readexactly(len(PONG)) == PONG
    return writer, time.perf_counter() - begun


async def one_by_one(node, port):
    """Returns the median time of a connection, in ms."""
    times = []
    for _ in range(SINGLE):
        writer, seconds = await one(port, f"10.78.0.{node}")
        times.append(1000 * seconds)
        writer.close()
        # Longer than a batch, so that each connection is the first of its batch.
        await asyncio.sleep(0.006)
    return statistics.median(times)


async def at_once(node, port, count):
    """Returns the time of `count` connections, in ms."""
    sources = addresses(node, -(-count // PER_ADDRESS))
    begun = time.perf_counter()
    await asyncio.gather(*(one(port, sources[number % len(sources)]) for number in range(count)))
    return 1000 * (time.perf_counter() - begun)


def main():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default="target/release/ragent")
    parser.add_argument("--clients", type=int, default=4_000,
                        help="clients that connect at once")
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.node:
        work = at_once(args.node, args.port, args.clients) if args.clients else one_by_one(args.node, args.port)
        print(asyncio.run(work))
        return
    ragent, each = str(Path(args.ragent).resolve()), args.clients // (NODES - 1)
    # A store admits 4 silent clients for each worker of the job, and 256 more.
    workers = -(-args.clients // (4 * NODES))

    def measure(port, nodes, count):
        words = [sys.executable, __file__, "--port", str(port), "--clients", str(count)]
        started = [subprocess.Popen(in_node(node, *words, "--node", str(node)), stdout=subprocess.PIPE, text=True)
                   for node in nodes]
        return max(float(process.communicate(timeout=PATIENCE_S)[0]) for process in started)

    with tempfile.TemporaryDirectory() as folder, network(-(-each // PER_ADDRESS)):
        for access in ("any", "members", "user") * 3:
            with job(ragent, access, workers, Path(folder)) as port:
                single = measure(port, [2], 0)
                together = measure(port, range(2, NODES + 1), each)
                print(f"{access:8}  one: {single:6.2f} ms   {args.clients} at once: {together:6.0f} ms", flush=True)


if __name__ == "__main__":
    main()
