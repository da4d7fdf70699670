#!/usr/bin/env python3
"""Breaks jobs of ragent, torchrun and NVRx's ft_launcher, and prints the time until they run again.

    .venv/bin/python benches/recovery.py --ragent target/release/ragent [--quick]
                                         [--only SCENARIO ...] [--launcher NAME ...]

Three agents on loopback with two workers each that only report the time of their start
(`stamp_worker`): no worker fails because another has ended, so the launcher alone is measured. Each
launcher runs with its defaults, ragent with `shrink_timeout=0`. The figure of a job that does not run
again is `--limit` seconds, or the time after which all its agents have given up.

Needs `cargo build --release -p ragent -p ragent-benches`, `scripts/setup-venv.sh` and, for NVRx,
`scripts/setup-venv.sh nvrx`. A full run takes half an hour, a quick one 20 minutes; with ragent alone,
ten minutes and one.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import store
from elastic import JOIN_SETTLE_S, TIMEOUT_S, Elastic, Job, Launcher, NotRunning, free_port, since, stamp_worker
from table import Column, Table

RAGENT, TORCHRUN, NVRX = "ragent", "torchrun", "nvrx"
RAGENT_DEFAULT = "target/release/ragent"
VOTERS = 3
ROOT = Path(__file__).parents[1]
AGENT_LOAD = store.TARGET / "release" / "agent_load"
STAMP_WORKER = store.TARGET / "release" / "stamp_worker"
# Path, constructor and installation command of each.
PEERS = {
    TORCHRUN: (ROOT / ".venv/bin/torchrun", Launcher.torchrun, "scripts/setup-venv.sh"),
    NVRX: (ROOT / ".venvs/nvrx/bin/ft_launcher", Launcher.nvrx, "scripts/setup-venv.sh nvrx"),
}

COLUMNS = [
    Column("what happens", 44), Column("ragent s", 9, True), Column("worst", 9, True),
    Column("times", 5, True), Column("torchrun s", 17, True), Column("nvrx s", 17, True),
    Column("goal s", 6, True), Column("reached", 7),
]


class Scenario(NamedTuple):
    """A fault or change of a job, and the goal for the time until ragent has it running again."""

    what: str
    goal_s: float
    # Yields milliseconds; its arguments are the jobs of a launcher, and the number of repetitions.
    measure: Callable
    # The launchers that can be measured.
    launchers: set = frozenset((RAGENT, TORCHRUN, NVRX))


def repeated(method):
    return lambda jobs, times: (method(jobs) for _ in range(times))


def status(job):
    """Returns the state of a job of ragent."""
    command = [job.launcher.program, "status", "--rdzv-endpoint", job.endpoint, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    return json.loads(done.stdout)


def wait_for_voters(job, count):
    """Waits until a job of ragent has `count` voters."""
    deadline = time.monotonic() + TIMEOUT_S
    while len(status(job)["voters"]) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the job does not have {count} voters")
        time.sleep(0.1)


def host_restart_ms(jobs):
    """Kills the agent that hosts the job and starts it again. Returns the time from its start until all three nodes run."""
    with jobs.job("3", 3) as job:
        if jobs.launcher.has_voters:
            wait_for_voters(job, VOTERS)
        jobs.pause()
        job.kill_agent(job.agents[0])
        return jobs.back_ms(job, 3, job.start_agent())


def host_loss(fault):
    """Returns the measurement of the loss of the agent that hosts the endpoint, which is not started again."""
    def loss_ms(jobs):
        with jobs.job("2:3", 3) as job:
            if jobs.launcher.has_voters:
                wait_for_voters(job, VOTERS)
            jobs.pause()
            return jobs.back_ms(job, 2, fault(job, job.agents[0]))
    return repeated(loss_ms)


def terminate(job, agent):
    """Asks an agent to leave, as a service manager does. Returns the time of that."""
    at_ns = time.monotonic_ns()
    agent.terminate()
    return at_ns


def cold_start(nodes, listed):
    """Returns the measurement of the start of `nodes` agents, whose endpoint is a list of `listed` voters."""
    def start_ms(jobs):
        with jobs.no_agents(str(nodes)) as job:
            job.endpoint = ",".join(f"127.0.0.1:{free_port()}" for _ in range(listed))
            starts = [job.start_agent() for _ in range(nodes)]
            return since(starts[0], job.running(nodes, starts[0], jobs.limit_s))
    return repeated(start_ms)


SCENARIOS = {
    "restart": Scenario("worker killed, group full", 0.1,
                        lambda jobs, times: jobs.restarts_ms("3", 3, times)),
    "below-max": Scenario("worker killed, below the maximum", 0.1,
                          lambda jobs, times: jobs.restarts_ms("2:3", 2, times)),
    "silent": Scenario("node lost, silent", 3.2, repeated(Elastic.silent_loss_ms)),
    "killed": Scenario("node lost, its agent killed", 0.6, repeated(Elastic.killed_loss_ms)),
    "spare": Scenario("node lost, a spare waits", 0.7, repeated(Elastic.replacement_ms)),
    "join": Scenario(f"node added, ragent beyond join_settle={JOIN_SETTLE_S}", 0.2,
                     Elastic.joins_ms),
    "host": Scenario("agent that hosts killed, started again", 1.5,
                     repeated(host_restart_ms)),
    "host-silent": Scenario("agent that hosts lost for good, silent", 3.4, host_loss(Job.freeze_node)),
    "host-killed": Scenario("agent that hosts killed for good", 0.6, host_loss(Job.kill_agent)),
    "host-leaves": Scenario("agent that hosts leaves (SIGTERM)", 0.5, host_loss(terminate)),
    # A first round waits for 3 s after the start of its agents.
    "start": Scenario("start of 3 agents, one endpoint", 3.2, cold_start(3, 1), {RAGENT}),
    "start-listed": Scenario("start of 3 agents, 3 listed voters", 3.3, cold_start(3, 3), {RAGENT}),
    "start-absent": Scenario("start of 2 agents, third voter absent", 3.5, cold_start(2, 3), {RAGENT}),
}


def times_of(name, launcher, quick):
    if launcher == RAGENT:
        return 5 if quick else 30
    if name == "restart":
        return 2 if quick else 5
    # Scenarios that take minutes differ little between repetitions.
    return 1


def outcomes(jobs, scenario, times):
    """Returns the seconds until a job ran again, or the reason why not, for `times` repetitions."""
    found = []
    while len(found) < times:
        try:
            for ms in scenario.measure(jobs, times - len(found)):
                found.append(ms / 1e3)
        except NotRunning as outcome:
            found.append(outcome)
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            break
    return found


def seconds(value):
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def cell(found):
    """Returns the median, or the outcome of the job with its frequency."""
    measured = [outcome for outcome in found if isinstance(outcome, float)]
    failed = [outcome for outcome in found if isinstance(outcome, NotRunning)]
    if not found:
        return ""
    if not failed:
        return seconds(statistics.median(measured))
    what = "job over after" if failed[0].is_over else "never in"
    text = f"{what} {failed[0].after_s:.0f}"
    return f"{text} ({len(failed)} of {len(found)})" if measured else text


def measure(jobs, name, quick, table):
    """Prints a row about a scenario."""
    scenario = SCENARIOS[name]
    found = {launcher: outcomes(of_launcher, scenario, times_of(name, launcher, quick))
             for launcher, of_launcher in jobs.items() if launcher in scenario.launchers}
    ours, torchrun, nvrx = (found.get(launcher, []) for launcher in (RAGENT, TORCHRUN, NVRX))
    is_measured = bool(ours) and all(isinstance(outcome, float) for outcome in ours)
    worst = seconds(max(ours)) if is_measured else ""
    reached = "yes" if is_measured and statistics.median(ours) < scenario.goal_s else "NO"
    table.add(scenario.what, cell(ours), worst, str(len(ours) or ""), cell(torchrun), cell(nvrx),
              str(scenario.goal_s), reached if RAGENT in jobs else "")


def measure_many(args, agents, table):
    """Prints rows about `agents` simulated agents, of which one fails or is lost, or whose coordinator is killed."""
    for blow, what in (("fail", "worker fails"), ("lose", "node is silent"),
                       ("kill", "coordinator lost")):
        command = [AGENT_LOAD, "--ragent", args.ragent, "--agents", str(agents), "--then", blow]
        found = []
        for _ in range(3 if args.quick else 10):
            done = subprocess.run(command, check=True, capture_output=True, timeout=90)
            found.append(json.loads(done.stdout)["again"]["seconds"])
        table.add(f"{what}, {agents:,} agents admitted again", seconds(statistics.median(found)),
                  seconds(max(found)), str(len(found)), "", "", "", "")


def main():
    args = parse_args()
    end_orderly()
    jobs = jobs_by_launcher(args)
    start = time.monotonic()
    table = Table(COLUMNS, args.markdown)
    for name in args.only:
        measure(jobs, name, args.quick, table)
    for agents in args.agents:
        measure_many(args, agents, table)
    print(f"\nmedians, and the worst of ragent's; {time.monotonic() - start:.0f} s, "
          f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)


def end_orderly():
    """Lets `finally` run when a signal ends the run."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))


def jobs_by_launcher(args):
    """Returns the jobs of each selected launcher that is installed."""
    limit_s = getattr(args, "limit", TIMEOUT_S)
    jobs = {}
    for name in args.launcher:
        if name == RAGENT:
            launcher = Launcher.ragent(args.ragent, shrink_timeout=0)
        else:
            program, make, hint = PEERS[name]
            if not program.is_file():
                print(f"there is no {name}; make it with `{hint}`", file=sys.stderr)
                continue
            launcher = make(str(program))
        jobs[name] = Elastic(launcher, stamp_worker(STAMP_WORKER), limit_s)
    return jobs


def add_common(parser):
    """Adds the arguments of all commands that compare launchers."""
    parser.add_argument("--ragent", default=RAGENT_DEFAULT, metavar="PATH",
                        type=lambda path: str(Path(path).resolve()),
                        help="the binary under test (target/release/ragent)")
    launchers = [RAGENT, *PEERS]
    parser.add_argument("--launcher", nargs="+", choices=launchers, default=launchers,
                        metavar="NAME", help=f"only these, of: {', '.join(launchers)}")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def check_programs(parser):
    for program in (STAMP_WORKER, AGENT_LOAD):
        if not os.access(program, os.X_OK):
            parser.error(f"there is no program at `{program}`; build it: "
                         "cargo build --release -p ragent -p ragent-benches")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common(parser)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", nargs="*", choices=SCENARIOS, default=list(SCENARIOS),
                        metavar="SCENARIO", help=f"only these, of: {', '.join(SCENARIOS)}")
    parser.add_argument("--limit", type=float, default=100, metavar="SECONDS",
                        help="how long a job that does not run again is watched (%(default)s)")
    parser.add_argument("--agents", nargs="+", type=int, default=[], metavar="N",
                        help="also break jobs of so many simulated agents, of ragent alone")
    args = parser.parse_args()
    check_programs(parser)
    return args


if __name__ == "__main__":
    main()
