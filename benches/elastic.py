"""How long a job is not running when something happens to it: jobs of several agents on loopback.

Workers are `stamp_worker`, which sends the moment of its start, and nothing else that takes time.
A group is running again when the last worker of the new round has been started.
"""

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

WORKERS_PER_NODE = 2
# ragent sets a node aside that fails three times within a minute, so a job is broken twice a node.
KILLS_PER_NODE = 2
LAST_CALL_S = 0.2
JOIN_SETTLE_S = 0.5
TIMEOUT_S = 90


class Stamp(NamedTuple):
    """The start of a worker."""

    group_rank: int
    rank: int
    world_size: int
    pid: int
    at_ns: int


class Launcher(NamedTuple):
    """What runs the agents."""

    program: str
    flags: list

    @classmethod
    def ragent(cls, program):
        # The last call is waited for at the first start of a job only, which is not measured.
        conf = f"last_call_timeout={LAST_CALL_S},join_settle={JOIN_SETTLE_S}"
        return cls(program, ["--rdzv-conf", conf])

    @classmethod
    def torchrun(cls, program):
        return cls(program, ["--rdzv-backend", "c10d"])


class Job:
    """A job on this machine, with all that is known of its workers."""

    def __init__(self, launcher, stamp_worker, nnodes, folder):
        self.launcher = launcher
        self.stamp_worker = stamp_worker
        self.nnodes = nnodes
        self.port = free_port()
        self.agents = []
        self.stamps = []
        self.path = folder / f"stamps-{self.port}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))

    def start_agent(self):
        """Starts one more agent, and returns when that was."""
        command = [
            self.launcher.program, "--nnodes", self.nnodes,
            "--nproc-per-node", str(WORKERS_PER_NODE), "--max-restarts", "100",
            "--rdzv-id", f"bench-{self.port}", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
            *self.launcher.flags, "--no-python", self.stamp_worker,
        ]
        at_ns = time.monotonic_ns()
        self.agents.append(subprocess.Popen(
            command, env=os.environ | {"BENCH_STAMPS": str(self.path)}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ))
        return at_ns

    def running(self, nodes, since_ns=0):
        """Waits until all workers of `nodes` nodes have been started after `since_ns`; returns
        their stamps."""
        ranks = set(range(nodes * WORKERS_PER_NODE))
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            group = {stamp.rank: stamp for stamp in self.stamps
                     if stamp.at_ns > since_ns and stamp.world_size == len(ranks)}
            if set(group) == ranks:
                return list(group.values())
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                line = self.socket.recv(256)
            except TimeoutError:
                states = [agent.poll() for agent in self.agents]
                raise RuntimeError(f"`{self.launcher.program}`: {len(group)} of {len(ranks)} "
                                   f"workers run after {TIMEOUT_S} s; agents: {states}") from None
            self.stamps.append(Stamp(*map(int, line.split())))

    def end(self):
        """Ends the agents, and whatever workers they may have left."""
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        mark = f"BENCH_STAMPS={self.path}".encode()
        for stamp in self.stamps:
            try:
                # The number may be another process's by now.
                if mark in Path(f"/proc/{stamp.pid}/environ").read_bytes().split(b"\0"):
                    os.kill(stamp.pid, signal.SIGKILL)
            except OSError:
                pass
        self.socket.close()


class Elastic:
    """Jobs of one launcher."""

    def __init__(self, launcher, stamp_worker):
        self.launcher = launcher
        self.stamp_worker = stamp_worker
        # Not in step with anything that polls.
        self.pauses = random.Random(1)

    @contextmanager
    def job(self, nnodes, nodes):
        """A job that runs on `nodes` nodes."""
        with tempfile.TemporaryDirectory() as folder:
            job = Job(self.launcher, self.stamp_worker, nnodes, Path(folder))
            try:
                for _ in range(nodes):
                    job.start_agent()
                job.running(nodes)
                yield job
            finally:
                job.end()

    def pause(self):
        time.sleep(self.pauses.uniform(0.3, 0.6))

    def restarts_ms(self, nnodes, nodes, kills):
        """Kills a worker, `kills` times; returns how long each time until all run again."""
        taken = []
        while len(taken) < kills:
            with self.job(nnodes, nodes) as job:
                group = job.running(nodes)
                for kill in range(min(nodes * KILLS_PER_NODE, kills - len(taken))):
                    self.pause()
                    victim = next(s for s in group if s.group_rank == kill % nodes)
                    killed_ns = time.monotonic_ns()
                    os.kill(victim.pid, signal.SIGKILL)
                    group = job.running(nodes, since_ns=killed_ns)
                    taken.append(since(killed_ns, group))
        return taken

    def joins_ms(self, times):
        """Adds a third node to two, `times` times; returns how long from the start of its agent
        until all three run, less the time that ragent waits for further ones on purpose."""
        taken = []
        for _ in range(times):
            with self.job("2:3", 2) as job:
                self.pause()
                started_ns = job.start_agent()
                group = job.running(3, since_ns=started_ns)
                taken.append(since(started_ns, group) - JOIN_SETTLE_S * 1e3)
        return taken


def since(moment_ns, group):
    return (max(stamp.at_ns for stamp in group) - moment_ns) / 1e6


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
