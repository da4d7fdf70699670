#!/usr/bin/env python3
"""Measures the time until workers train again, with and without standbys.

    .venv/bin/python benches/standby.py --ragent target/release/ragent [--times N] [--only SCENARIO ...]

Workers are `ddp_worker.py`: they train with gloo, and with NCCL on the GPUs of this machine with
`--only gpu`. This, and two workers in place of four (`--only pair`), is not measured otherwise. Jobs
with `--standby` and with `--standby=none` are broken in turn, and torchrun's where it can continue. A
figure with standbys counts only if all workers were started from one: anything else is an error.

A killed worker is also measured with torchft. Its job has four replica groups with one worker each
(`torchft_worker.py`), and torchrun starts the killed worker again.

Needs `cargo build --release -p ragent`, a Python with torch and, for torchft, `scripts/setup-venv.sh torchft`.
A repetition of all scenarios takes two minutes and a half.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from elastic import KILLS_PER_NODE, Job, Launcher, NotRunning, Worker, free_port, marked, since
from table import Column, Table

DDP_WORKER = Path(__file__).resolve().with_name("ddp_worker.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")
TORCHFT_WORKER = DDP_WORKER.with_name("torchft_worker.py")
TORCHFT = DDP_WORKER.parents[1] / ".venvs/torchft/bin"
ENV = {
    "PYTHON_EXEC": sys.executable,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "RAGENT_LOG": "info",
}
# Heartbeats let standbys for the next round start when the round is 10 s old.
HANG_TIMEOUT_S = 300
# The name of a standby that waits.
COMM = "ragent-standby"
# The least time for which agents wait for their coordinator.
FIRST_START_S = 7
LOOK_S = 0.2
LIMIT_S = 120
GPUS = len(list(Path("/dev").glob("nvidia[0-9]*")))


class TrainingJob(Job):
    """A job whose workers train. Its agents log in JSON."""

    def lines(self, agent):
        """Returns the log of an agent so far."""
        complete = self.log_of(agent).read_text().rpartition("\n")[0]
        return [json.loads(line) for line in complete.splitlines() if line.startswith("{")]

    def logged_ns(self, agent, message):
        """Waits until an agent logs `message`, and returns the time of the last such line."""
        def found():
            return [line for line in self.lines(agent)
                    if line["fields"]["message"].startswith(message)]

        line = wait(f"agent {agent} logs `{message}`", found)[-1]
        since_epoch_ns = datetime.fromisoformat(line["timestamp"]).timestamp() * 1e9
        return since_epoch_ns - (time.time_ns() - time.monotonic_ns())

    def wait_for_standbys(self, count):
        """Waits until `count` standbys have imported their modules."""
        mark = f"BENCH_STAMPS={self.path}".encode()
        wait(f"{count} standbys wait", lambda: sum(comm(pid) == COMM for pid in marked(mark)) == count)

    def check_starts(self, group, are_standbys):
        """Checks from what the workers of `group` were started."""
        lines = [line for agent in range(len(self.agents)) for line in self.lines(agent)]
        started = {line["fields"]["pid"]: line["fields"]["is_standby"] for line in lines
                   if line["fields"]["message"] == "worker started"}
        others = [stamp.rank for stamp in group if started.get(stamp.pid) != are_standbys]
        warnings = [line["fields"]["message"] for line in lines
                    if line["level"] == "WARN" and "standby" in line["fields"]["message"]]
        if others or warnings:
            raise RuntimeError(f"workers {others} were {'not ' * are_standbys}started from standbys; "
                               f"warnings: {warnings}")


class Training:
    """Jobs whose workers train, under one launcher, with or without standbys."""

    def __init__(self, launcher, has_standbys=False, limit_s=LIMIT_S):
        self.launcher = launcher
        self.has_standbys = has_standbys
        self.limit_s = limit_s
        self.pauses = random.Random(1)

    @classmethod
    def ragent(cls, program, has_standbys):
        flags = ["--standby" if has_standbys else "--standby=none", "--log-format", "json",
                 "--hang-timeout", str(HANG_TIMEOUT_S)]
        return cls(Launcher.ragent(program, *flags), has_standbys)

    @classmethod
    def torchrun(cls, limit_s):
        return cls(Launcher.torchrun(str(TORCHRUN)), limit_s=limit_s)

    @contextmanager
    def job(self, nnodes, per_node, backend="gloo"):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            worker = Worker([str(DDP_WORKER)], ENV | {"BENCH_BACKEND": backend}, per_node)
            job = TrainingJob(self.launcher, worker, nnodes, Path(folder))
            try:
                yield job
            finally:
                job.end()

    def started(self, job, nodes):
        """Waits until the workers of a new job train. Returns their stamps."""
        try:
            return job.running(nodes)
        except NotRunning as why:
            raise RuntimeError(f"`{self.launcher.program}` does not start: {why}") from why

    def calm(self, job, standbys):
        """Waits until `standbys` standbys wait, if there are any, and for a random time."""
        if self.has_standbys:
            job.wait_for_standbys(standbys)
        time.sleep(self.pauses.uniform(0.5, 1))

    def first_step(self, job, nodes, since_ns):
        group = job.running(nodes, since_ns, self.limit_s)
        if self.launcher.program != str(TORCHRUN):
            job.check_starts(group, self.has_standbys)
        return group

    def kills_ms(self, workers=4, backend="gloo"):
        """Kills workers of a node one after another. Yields each time until all train again."""
        with self.job("1", workers, backend) as job:
            job.start_host()
            group = self.started(job, 1)
            for _ in range(KILLS_PER_NODE):
                self.calm(job, workers)
                killed_ns = time.monotonic_ns()
                os.kill(self.pauses.choice(group).pid, signal.SIGKILL)
                group = self.first_step(job, 1, killed_ns)
                yield since(killed_ns, group)

    def gpu_kills_ms(self):
        """The same with one worker for each GPU."""
        return self.kills_ms(GPUS, "nccl")

    def takeovers_ms(self):
        """Kills the agent of one of two nodes while a spare waits. Yields the time from its detection
        until all train."""
        with self.job("2", 2) as job:
            job.start_host()
            job.start_agent()
            self.started(job, 2)
            job.start_agent()
            self.calm(job, 6)
            killed_ns = job.kill_agent(job.agents[1])
            group = self.first_step(job, 2, killed_ns)
            yield since(job.logged_ns(0, "node lost"), group)

    def joins_ms(self):
        """Adds a second node. Yields the time from its readiness until all train, less the deliberate
        wait for further nodes."""
        ready = "all standbys are ready" if self.has_standbys else "registered"
        with self.job("1:2", 2) as job:
            job.start_host()
            self.started(job, 1)
            self.calm(job, 2)
            started_ns = job.start_agent()
            group = self.first_step(job, 2, started_ns)
            yield since(job.logged_ns(1, ready), group) - self.launcher.join_settle_s * 1e3

    def first_starts_ms(self):
        """Starts two agents, and a coordinator when the standbys of both are ready. Yields the time
        from the second registration until all train."""
        with self.job("2", 2) as job:
            # The agents are two of five voters, so nothing begins before a third one.
            voters = ["--rdzv-endpoint", ",".join(f"127.0.0.1:{free_port()}" for _ in range(5))]
            for _ in range(2):
                job.start_agent(*voters)
            # On a busy machine the imports of four workers take longer.
            time.sleep(FIRST_START_S)
            self.calm(job, 4)
            command = [self.launcher.program, "coordinator", "--rdzv-id", job.run_id, "--nnodes", "2",
                       *voters]
            coordinator = job.spawn(command, job.folder / "coordinator.log")
            try:
                group = self.first_step(job, 2, 0)
                yield since(max(job.logged_ns(agent, "registered") for agent in range(2)), group)
            finally:
                coordinator.terminate()
                coordinator.wait()


class Torchft(Training):
    """Jobs of torchft, whose groups are restarted by torchrun."""

    def __init__(self):
        super().__init__(Launcher.torchrun(str(TORCHFT / "torchrun")))

    def kills_ms(self, workers=4):
        """Kills groups one after another. Yields each time until all train together again."""
        with self.job("1", 1) as job:
            lighthouse = f"127.0.0.1:{free_port()}"
            job.spawn([str(TORCHFT / "torchft_lighthouse"), "--min_replicas", "1", "--bind", lighthouse],
                      job.folder / "lighthouse.log")
            env = ENV | {"PYTHON_EXEC": str(TORCHFT / "python"), "TORCHFT_LIGHTHOUSE": f"http://{lighthouse}"}
            for group in range(workers):
                job.worker = Worker([str(TORCHFT_WORKER), str(group), str(workers)], env, 1)
                job.start_agent("--rdzv-endpoint", f"127.0.0.1:{free_port()}")
            group = self.started(job, workers)
            for _ in range(KILLS_PER_NODE):
                time.sleep(self.pauses.uniform(0.5, 1))
                killed_ns = time.monotonic_ns()
                os.kill(self.pauses.choice(group).pid, signal.SIGKILL)
                group = job.running(workers, killed_ns, self.limit_s)
                others = [stamp.at_ns for stamp in job.stamps if stamp.at_ns > killed_ns and stamp.world_size < workers]
                if others:
                    print(f"torchft: the others train after {(min(others) - killed_ns) / 1e9:.2f} s", file=sys.stderr)
                yield since(killed_ns, group)


class Scenario(NamedTuple):
    """A fault or change of a job, and the goals for the time until all its workers train."""

    what: str
    goal_s: float | None
    worst_s: float | None
    # Yields milliseconds; its argument is the jobs.
    measure: Callable


SCENARIOS = {
    "kill": Scenario("worker killed, all 4 train", 0.3, 0.6, lambda jobs: jobs.kills_ms()),
    "pair": Scenario("worker killed, both of 2 train", 0.3, 0.6, partial(Training.kills_ms, workers=2)),
    "spare": Scenario("agent killed, all 4 train after detection", 0.6, None, Training.takeovers_ms),
    "join": Scenario("node ready, all 4 train after join_settle", 0.5, None, Training.joins_ms),
    "first": Scenario("both nodes registered, all 4 train", 0.5, None, Training.first_starts_ms),
    "gpu": Scenario(f"worker killed, {GPUS} with a GPU train", None, None, Training.gpu_kills_ms),
}
# The scenarios of a run that names none.
ON_PROCESSORS = [name for name in SCENARIOS if name not in ("pair", "gpu")]
# Most of its jobs do not train again, or only after a minute: see benches/recovery.py.
OF_TORCHRUN = ("kill", "pair", "gpu")
TORCHRUN_LIMIT_S = 60


class Outcome(NamedTuple):
    """The times of a scenario in milliseconds."""

    scenario: Scenario
    standby: list
    cold: list
    # Text if workers did not train again.
    torchrun: list | str
    torchft: list | str

    def of_peers(self):
        """Returns the medians of torchrun's and torchft's times; None if there are none."""
        return [found if isinstance(found, str) else statistics.median(found) if found else None
                for found in (self.torchrun, self.torchft)]

    def is_reached(self):
        median, worst = statistics.median(self.standby), max(self.standby)
        goal_s, worst_s = self.scenario.goal_s, self.scenario.worst_s
        if goal_s is None:
            return True
        return median < goal_s * 1e3 and (worst_s is None or worst < worst_s * 1e3)


def measure(name, ragent, times, torchrun_times):
    """Measures a scenario `times` times, in turn with standbys and without."""
    scenario = SCENARIOS[name]
    arms = [(Training.ragent(ragent, has_standbys), []) for has_standbys in (True, False)]
    while any(len(found) < times for _, found in arms):
        for jobs, found in arms:
            for ms in scenario.measure(jobs):
                found.append(ms)
    torchrun, torchft = [], []
    if name in OF_TORCHRUN:
        torchrun = measure_peer(scenario, Training.torchrun(TORCHRUN_LIMIT_S), torchrun_times)
    if name == "kill" and TORCHFT.is_dir():
        torchft = measure_peer(scenario, Torchft(), torchrun_times)
    elif name == "kill":
        print("there is no torchft; make it with `scripts/setup-venv.sh torchft`", file=sys.stderr)
    return Outcome(scenario, *(found[:times] for _, found in arms), torchrun, torchft)


def measure_peer(scenario, jobs, times):
    found = []
    try:
        while len(found) < times:
            found += scenario.measure(jobs)
    except NotRunning as outcome:
        return f"{'over after' if outcome.is_over else 'never in'} {outcome.after_s:.0f} s"
    return found


def comm(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # It has just ended.
        return ""


def wait(what, found):
    """Waits until `found` returns something, and returns that."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := found()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not in {LIMIT_S} s: {what}")
        time.sleep(LOOK_S)
    return value


COLUMNS = [
    Column("what happens", 44), Column("times", 5, True), Column("standby s", 9, True),
    Column("worst", 6, True), Column("none s", 6, True), Column("worst", 6, True),
    Column("torchrun s", 12, True), Column("torchft s", 12, True), Column("goal s", 6, True), Column("reached", 7),
]


def cells(outcome):
    def seconds(ms):
        if ms is None or isinstance(ms, str):
            return ms or ""
        return f"{ms / 1e3:.3f}" if ms < 1e3 else f"{ms / 1e3:.2f}"

    times = [at(found) for found in (outcome.standby, outcome.cold) for at in (statistics.median, max)]
    return [outcome.scenario.what, str(len(outcome.standby)),
            *map(seconds, [*times, *outcome.of_peers()]), str(outcome.scenario.goal_s or "none"),
            "yes" if outcome.is_reached() else "NO"]


def main():
    args = parse_args()
    # Lets `finally` run when a signal ends the run.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    start = time.monotonic()
    table = Table(COLUMNS, args.markdown)
    for name in args.only:
        outcome = measure(name, args.ragent, args.times, 1 + args.times // 4)
        table.add(*cells(outcome))
        if args.verbose:
            print(f"{outcome.standby}\n{outcome.cold}\n{outcome.torchrun}\n{outcome.torchft}", file=sys.stderr)
    print(f"\nmedians, and the worst; {time.monotonic() - start:.0f} s, "
          f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default="target/release/ragent", metavar="PATH",
                        type=lambda path: str(Path(path).resolve()),
                        help="the binary under test (target/release/ragent)")
    parser.add_argument("--times", type=int, default=20, metavar="N",
                        help="repetitions of each scenario (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=ON_PROCESSORS,
                        metavar="SCENARIO", help=f"only these, of: {', '.join(SCENARIOS)}")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--verbose", action="store_true", help="print all times, in milliseconds")
    args = parser.parse_args()
    if "gpu" in args.only and not GPUS:
        parser.error("this machine has no GPU: there is no /dev/nvidia0")
    if not os.access(args.ragent, os.X_OK):
        parser.error(f"there is no program at `{args.ragent}`; build it: "
                     "cargo build --release -p ragent")
    if not TORCHRUN.is_file():
        parser.error(f"there is no `{TORCHRUN}`; run scripts/setup-venv.sh "
                     "and start this with .venv/bin/python")
    return args


if __name__ == "__main__":
    main()
