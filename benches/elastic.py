"""Measures interruptions of jobs with several agents on loopback.

Workers are `stamp_worker`, which sends the time of its start and does nothing else, or `ddp_worker.py`,
which trains, and sends the time of its first step. A group is running again when the last worker of the
new round has sent its stamp.
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
# ragent quarantines a node that fails three times within a minute, so a job is broken twice per node.
KILLS_PER_NODE = 2
LAST_CALL_S = 0.2
JOIN_SETTLE_S = 0.5
TIMEOUT_S = 90
# Interval at which the agents are checked; stamps are read as they arrive.
LOOK_S = 0.1


class Stamp(NamedTuple):
    """The start of a worker, or its first step."""

    group_rank: int
    rank: int
    world_size: int
    pid: int
    at_ns: int


class Worker(NamedTuple):
    """The command of the workers, as words of the launcher's command line."""

    words: list
    # Variables of the agents, and so of the workers.
    env: dict = {}
    per_node: int = WORKERS_PER_NODE


class Launcher(NamedTuple):
    """A program that runs agents, and its flags."""

    program: str
    flags: list
    # Time that the launcher deliberately waits after a node was added.
    join_settle_s: float = 0
    # Time after which a started agent waits for its place.
    start_s: float = 8
    # True if members of the job elect the coordinator.
    has_voters: bool = False

    @classmethod
    def ragent(cls, program, *flags, **conf):
        # The last call is waited for at the first start of a job only, which is not measured.
        conf = {"last_call_timeout": LAST_CALL_S, "join_settle": JOIN_SETTLE_S} | conf
        rdzv = ["--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items())]
        return cls(program, [*rdzv, *flags], JOIN_SETTLE_S, 1, conf.get("voters") != 1)

    @classmethod
    def torchrun(cls, program):
        return cls(program, ["--rdzv-backend", "c10d"])

    @classmethod
    def nvrx(cls, program):
        # Workers send no heartbeats, which needs no settings.
        return cls(program, ["--rdzv-backend", "c10d", "--ignore-missing-fault-tol-cfg"])


def stamp_worker(program):
    return Worker(["--no-python", str(program)])


class NotRunning(Exception):
    """A group lacks workers: until the time limit, or because the job has ended."""

    def __init__(self, after_s, is_over, found):
        super().__init__(f"{found} after {after_s:.0f} s")
        self.after_s = after_s
        self.is_over = is_over


class Job:
    """A job on this machine, with the stamps of its workers."""

    def __init__(self, launcher, worker, nnodes, folder):
        self.launcher = launcher
        self.worker = worker
        self.nnodes = nnodes
        self.folder = folder
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self.run_id = f"bench-{self.port}"
        self.agents = []
        self.frozen = []
        self.stamps = []
        self.path = folder / f"stamps-{self.port}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))

    def start_agent(self, *flags):
        """Starts one more agent, and returns the time of its start."""
        command = [
            self.launcher.program, "--nnodes", self.nnodes,
            "--nproc-per-node", str(self.worker.per_node), "--max-restarts", "100",
            "--rdzv-id", self.run_id, "--rdzv-endpoint", self.endpoint,
            *self.launcher.flags, *flags, *self.worker.words,
        ]
        at_ns = time.monotonic_ns()
        self.agents.append(self.spawn(command, self.log_of(len(self.agents))))
        return at_ns

    def spawn(self, command, log):
        """Starts a process of the job, whose standard error goes to the file `log`."""
        own = {"BENCH_STAMPS": str(self.path)}
        # Their files are removed with the folder.
        own |= {name: str(self.folder) for name in ("TMPDIR", "XDG_RUNTIME_DIR")}
        with log.open("wb") as stderr:
            return subprocess.Popen(
                command, env=os.environ | self.worker.env | own, start_new_session=True,
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            )

    def log_of(self, agent):
        return self.folder / f"agent-{agent}.log"

    def start_host(self):
        """Starts the first agent, and waits until it hosts the endpoint."""
        self.start_agent()
        deadline = time.monotonic() + TIMEOUT_S
        while not is_listened_on(self.port):
            if time.monotonic() > deadline or self.agents[0].poll() is not None:
                raise RuntimeError(f"`{self.launcher.program}` hosts nothing")
            time.sleep(0.005)

    def kill_agent(self, agent):
        """Kills an agent alone, and returns the time of that."""
        at_ns = time.monotonic_ns()
        agent.kill()
        agent.wait()
        return at_ns

    def freeze_node(self, agent):
        """Stops an agent and all its processes, and returns the time of that. They become silent
        without notice, as when a machine loses power."""
        self.frozen.append(agent)
        pids = tree(agent.pid)
        at_ns = time.monotonic_ns()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return at_ns

    def is_over(self):
        """Returns true if fewer agents are left than the job needs."""
        left = [agent for agent in self.agents if agent.poll() is None and agent not in self.frozen]
        return len(left) < int(self.nnodes.split(":")[0])

    def running(self, nodes, since_ns=0, limit_s=TIMEOUT_S):
        """Waits until all workers of `nodes` nodes have been started after `since_ns`. Returns
        their stamps."""
        ranks = set(range(nodes * self.worker.per_node))
        start = time.monotonic()
        self.socket.settimeout(LOOK_S)
        while True:
            group = {stamp.rank: stamp for stamp in self.stamps
                     if stamp.at_ns > since_ns and stamp.world_size == len(ranks)}
            if set(group) == ranks:
                return list(group.values())
            after_s = time.monotonic() - start
            is_over = self.is_over()
            if is_over or after_s > limit_s:
                states = [agent.poll() for agent in self.agents]
                raise NotRunning(after_s, is_over, f"{len(group)} of {len(ranks)} workers run, "
                                                   f"agents are {states}")
            try:
                self.stamps.append(Stamp(*map(int, self.socket.recv(256).split())))
            except TimeoutError:
                pass

    def end(self):
        """Ends the agents, and all processes that they may have left."""
        for agent in self.agents:
            agent.send_signal(signal.SIGKILL if agent in self.frozen else signal.SIGTERM)
        deadline = time.monotonic() + 10
        for agent in self.agents:
            try:
                agent.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()
        mark = f"BENCH_STAMPS={self.path}".encode()
        while left := marked(mark):
            if time.monotonic() > deadline + 10:
                raise RuntimeError(f"processes {left} do not end")
            for pid in left:
                send_kill(pid)
            time.sleep(0.01)
        self.socket.close()


class Elastic:
    """Jobs of one launcher."""

    def __init__(self, launcher, worker, limit_s=TIMEOUT_S):
        self.launcher = launcher
        self.worker = worker
        self.limit_s = limit_s
        # Random, so as not to be in step with anything that polls.
        self.pauses = random.Random(1)

    @contextmanager
    def no_agents(self, nnodes):
        """Prepares a job without any agent, and ends those that are started in it."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            job = Job(self.launcher, self.worker, nnodes, Path(folder))
            try:
                yield job
            finally:
                job.end()

    @contextmanager
    def job(self, nnodes, nodes):
        """Starts a job on `nodes` nodes, of which the first hosts it."""
        with self.no_agents(nnodes) as job:
            job.start_host()
            for _ in range(nodes - 1):
                job.start_agent()
            try:
                job.running(nodes)
            except NotRunning as why:
                raise RuntimeError(f"`{self.launcher.program}` does not start: {why}") from why
            yield job

    def pause(self):
        time.sleep(self.pauses.uniform(0.3, 0.6))

    def back_ms(self, job, nodes, since_ns):
        """Returns the time from `since_ns` until all workers of `nodes` nodes run again."""
        return since(since_ns, job.running(nodes, since_ns, self.limit_s))

    def restarts_ms(self, nnodes, nodes, kills):
        """Kills a worker, `kills` times. Yields each time until all run again."""
        while kills > 0:
            with self.job(nnodes, nodes) as job:
                group = job.running(nodes)
                for kill in range(min(nodes * KILLS_PER_NODE, kills)):
                    self.pause()
                    victim = next(s for s in group if s.group_rank == kill % nodes)
                    killed_ns = time.monotonic_ns()
                    os.kill(victim.pid, signal.SIGKILL)
                    group = job.running(nodes, killed_ns, self.limit_s)
                    yield since(killed_ns, group)
                    kills -= 1

    def joins_ms(self, times):
        """Adds a third node to two, `times` times. Yields each time from the start of its agent
        until all three run, less the deliberate wait for further nodes."""
        for _ in range(times):
            with self.job("2:3", 2) as job:
                self.pause()
                started_ns = job.start_agent()
                yield self.back_ms(job, 3, started_ns) - self.launcher.join_settle_s * 1e3

    def silent_loss_ms(self):
        """Freezes one of three nodes. Returns the time until the two others run."""
        with self.job("2:3", 3) as job:
            self.pause()
            return self.back_ms(job, 2, job.freeze_node(self.guest(job)))

    def killed_loss_ms(self):
        """Kills the agent of one of three nodes. Returns the time until the two others run."""
        with self.job("2:3", 3) as job:
            self.pause()
            return self.back_ms(job, 2, job.kill_agent(self.guest(job)))

    def replacement_ms(self):
        """Kills the agent of one of three nodes while a fourth waits. Returns the time until
        three run."""
        with self.job("3:3", 3) as job:
            guest = self.guest(job)
            job.start_agent()
            time.sleep(self.launcher.start_s)
            self.pause()
            return self.back_ms(job, 3, job.kill_agent(guest))

    def guest(self, job):
        return self.pauses.choice(job.agents[1:])


def since(moment_ns, group):
    return (max(stamp.at_ns for stamp in group) - moment_ns) / 1e6


def tree(pid):
    """Returns a process and all its descendants."""
    pids = [pid]
    for parent in pids:
        for task in Path(f"/proc/{parent}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    return pids


def marked(mark):
    """Returns the processes that have `mark` in their environment."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:  # It has just ended.
            pass
    return pids


def send_kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def is_listened_on(port):
    """Returns true if a process listens on a port of this machine."""
    listening = "0A"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == listening and int(local.rsplit(":", 1)[1], 16) == port:
                return True
    return False


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
