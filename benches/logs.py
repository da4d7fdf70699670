#!/usr/bin/env python3
"""Measures `ragent logs --follow` with many ranks that print the same lines.

    .venv/bin/python benches/logs.py --ragent target/release/ragent [--nodes N] [--seconds N]

The agents are made up: one server answers for all of them, with eight ranks each. Each rank prints the same line every second. The state of
the job comes from a real agent.
"""

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

RANKS_PER_NODE = 8
# Time for a real agent to start its worker.
START_TIMEOUT_S = 60


def real_state(ragent):
    """Returns the state of a job of one node."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder}
        words = [ragent, "--rdzv-endpoint", "127.0.0.1:0", "--no-python", "sleep", "60"]
        agent = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while time.monotonic() < deadline:
                asked = subprocess.run([ragent, "status", "--json"], env=environment, capture_output=True, text=True)
                state = json.loads(asked.stdout) if asked.returncode == 0 else {}
                if state.get("phase") == "running":
                    return state
                time.sleep(0.1)
        finally:
            agent.terminate()
            agent.wait()
    raise SystemExit("error: the agent has started no worker in time")


class Agents:
    """The made-up agents. Each connection belongs to the next node."""

    def __init__(self, state, nodes):
        self.state, self.nodes, self.next = state, nodes, 0

    async def answer(self, reader, writer):
        """Answers one request."""
        request = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/jsonl\r\nConnection: close\r\n\r\n")
        try:
            if request.startswith("/v1/logs"):
                node, self.next = self.next, self.next + 1
                await self.print_lines(writer, node)
            else:
                writer.write(json.dumps(self.state).encode() + b"\n")
                if "follow" in request:
                    await asyncio.Event().wait()
            await writer.drain()
        except (OSError, asyncio.CancelledError):
            # The reader has ended, or the measurement is over.
            pass
        writer.close()

    async def print_lines(self, writer, node):
        """Sends a line of each rank every second."""
        head = {"node": {"host": f"n{node}", "streams": RANKS_PER_NODE, "unread": [0, 0]}}
        writer.write(json.dumps(head).encode() + b"\n")
        while True:
            await asyncio.sleep(1 - time.time() % 1)
            for rank in range(RANKS_PER_NODE):
                output = {"rank": RANKS_PER_NODE * node + rank, "is_stderr": False, "round": 1, "is_old": False,
                          "skipped": 0, "lines": [f"step {int(time.time())} loss 2.31 of a model of this size"]}
                writer.write(json.dumps({"output": output}).encode() + b"\n")
            await writer.drain()


def usage(pid):
    """Returns the largest resident memory in MB and the CPU time in seconds of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(peak.split()[1]) / 1024, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(ragent, nodes, seconds):
    """Prints the result."""
    state = real_state(ragent)
    agents = Agents(state, nodes)
    server = await asyncio.start_server(agents.answer, "127.0.0.1", 0, backlog=4 * nodes)
    port = server.sockets[0].getsockname()[1]
    node = {**state["nodes"][0], "address": "127.0.0.1", "agent_port": port, "local_world_size": RANKS_PER_NODE}
    state["nodes"] = [
        {**node, "node_id": f"node{number}", "host_name": f"n{number}", "group_rank": number,
         "first_global_rank": RANKS_PER_NODE * number}
        for number in range(nodes)
    ]
    words = [ragent, "logs", "--follow", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    reader = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    lines = [await reader.stdout.readline()]
    _, before_s = usage(reader.pid)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            lines.append(await asyncio.wait_for(reader.stdout.readline(), left))
        except asyncio.TimeoutError:
            break
    peak_mb, cpu_s = usage(reader.pid)
    reader.terminate()
    await reader.wait()
    server.close()
    ranks = RANKS_PER_NODE * nodes
    whole = sum(line.startswith(f"0-{ranks - 1} ".encode()) for line in lines[1:])
    print(f"{nodes} nodes, {ranks} ranks, {seconds} s: {len(lines) - 1} lines printed, {whole} of them of all ranks; "
          f"{peak_mb:.0f} MB at most, {100 * (cpu_s - before_s) / seconds:.1f} % of a CPU")
    if peak_mb >= 64:
        raise SystemExit("error: the reader needs 64 MB or more")


def main():
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default="target/release/ragent")
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    asyncio.run(measure(options.ragent, options.nodes, options.seconds))


if __name__ == "__main__":
    main()
