#!/usr/bin/env python3
"""Replays a month of a large training job, and prints the hours that it loses with each launcher.

    python3 benches/month.py [--nodes N ...] [--failures llama3|rsc1|RATE] [--every MINUTES]

How much of a month is lost, and which part of that is work done again? Machines fail at a published
rate. The times of the launchers are those that the other benches have measured. Everything else is
assumed, and printed below the tables with its source.

1. The stops of a month are drawn: a Poisson process, and a cause for each stop. All launchers get the
   same stops.
2. A month is replayed stop by stop. Each second is useful work, or lost for one reason.
3. The result is the mean of many months, once with the given interval between checkpoints, and once
   with the best one after Young and Daly.

Needs only Python, and takes three seconds. `--check` compares the simplest case with the formula.
"""

import argparse
import math
import random
import re
import statistics
import sys
import textwrap
from typing import NamedTuple

from table import Column, Table

HOUR_S = 3600
DAY_S = 24 * HOUR_S
MONTH_S = 30 * DAY_S
WIDTH = 100
# The months that are replayed by default.
MONTHS = 200
# Limits of the check. The formula is an approximation, the exact loss is not.
FORMULA_LIMIT = 0.05
EXACT_LIMIT = 0.01

# The causes of stops, by what a launcher sees of them.
BAD, SOFTWARE, LOST, HANG, SILENT, PLANNED = "bad machine", "software", "lost", "hang", "silent", "planned"

# Llama 3 405B (arXiv 2407.21783, table 5): 54 days on 16,384 GPUs, so 2,048 nodes.
LLAMA3_DAYS = 54
LLAMA3_NODES = 2048
# The causes of that table, grouped here. The first five groups are its 419 unexpected interruptions.
LLAMA3_STOPS = {
    # GPU 148, HBM3 72, SRAM 19, system processor 17: the worker exits, and its machine is bad.
    BAD: 148 + 72 + 19 + 17,
    # Software bug 54, dependency 2: the worker exits, and the next start works.
    SOFTWARE: 54 + 2,
    # Host maintenance 32, SSD 3, power 3, chassis 2, IO board 2, CPU 2, memory 2: the machine is gone.
    LOST: 32 + 3 + 3 + 2 + 2 + 2 + 2,
    # Switch or cable 35, NIC 7, NCCL watchdog 7: a collective does not end.
    HANG: 35 + 7 + 7,
    # Silent data corruption 6, thermal 6: the job runs, but wrong or slow.
    SILENT: 6 + 6,
    PLANNED: 47,
}
UNEXPECTED = sum(LLAMA3_STOPS.values()) - LLAMA3_STOPS[PLANNED]
# Unexpected stops in 1,000 node-days. rsc1: arXiv 2410.21680, 11 months of Meta's cluster RSC-1.
RATES = {"llama3": 1000 * UNEXPECTED / (LLAMA3_DAYS * LLAMA3_NODES), "rsc1": 6.50}

# From the start of a worker until it uses its GPU, so mainly imports. A bad GPU fails there again. With
# torch alone it was 11 s on two processors (benches/standby.py --only kill, without standbys).
FIRST_USE_S = 30
# Until a person notices that a job computes nonsense, or is slow.
PERSON_S = HOUR_S
# The restarts of a job before the scheduler starts it again, as in torchrun's examples.
TORCHRUN_RESTARTS = 3

# Measured, in seconds, from the fault until all workers run again (docs/performance.md, "Recovery").
# benches/recovery.py --only restart
TORCHRUN_RESTART_S = 2.07
NVRX_RESTART_S = 2.09
# benches/recovery.py --agents 1000: the row "worker fails, 1,000 agents admitted again".
RAGENT_RESTART_S = 0.152
# benches/recovery.py --only spare, where an agent is killed. torchrun's job is over after this time.
TORCHRUN_SPARE_S = 75
NVRX_SPARE_S = 14
# benches/recovery.py --only silent, which includes a restart of three agents.
RAGENT_SILENT_S = 2.86
# STRIKES_MAX in rendezvous/src/limits.rs: a node is quarantined after so many failures, each within a
# minute of a start (EARLY). The failure that stopped the training is not one of them.
RAGENT_TRIES = 3

# Assumed for checkpoints in memory, in addition to those on disk: the time for which a `save` stops training, and
# the time until the step is on two nodes.
MEMORY_STALL_S, MEMORY_WHOLE_S = 0.5, 5
# For loading a step, or fetching it from another node.
MEMORY_READ_S = 5
# MEMORY_TRIES in rendezvous/src/training.rs: after so many failed starts from memory, the next one is from disk.
MEMORY_TRIES = 2
# After these stops, what is in memory is of use, unless the machine fails again too often.
MEMORY_HELPS = (BAD, SOFTWARE, LOST, HANG, PLANNED)

# The parts of what is lost.
REDONE, RESTART, DETECTION, STALL, AGAIN = PARTS = "redone", "restart", "detection", "stall", "bad machine"


class Stop(NamedTuple):
    """A moment at which something stops the job."""

    at_s: float
    cause: str
    # How many further starts on the same machine fail.
    failing_starts: float


class Reaction(NamedTuple):
    """The reaction of a launcher to a stop."""

    # From the fault until the launcher, or torch, notices it.
    detected_s: float
    # From then until all workers have been started again.
    restarted_s: float = 0
    # True if the job is over, and the scheduler has to start it again.
    ends_job: bool = False


class Launcher(NamedTuple):
    """A launcher with its reactions."""

    name: str
    reactions: dict
    # How often it tries a bad machine again before it takes a spare.
    tries: float
    # The restarts of a job before it is over.
    max_restarts: float = math.inf
    # True if the script also saves in memory.
    has_memory: bool = False


class Checkpoints(NamedTuple):
    """The checkpoints of a script."""

    # The work between two of them.
    every_s: float
    # How long training stops for one.
    stall_s: float
    # From its begin until it can be read.
    complete_s: float

    def after(self, ran_s):
        """Returns the stalls, the useful work and the work that is lost if the script is stopped after `ran_s`."""
        cycle_s = self.every_s + self.stall_s
        cycles, rest_s = divmod(ran_s, cycle_s)
        stalled_s = cycles * self.stall_s + max(rest_s - self.every_s, 0)
        complete = max((ran_s + self.stall_s - self.complete_s) // cycle_s, 0)
        kept_s = complete * self.every_s
        return stalled_s, kept_s, ran_s - stalled_s - kept_s


class Month:
    """A month of a job, replayed stop by stop."""

    def __init__(self, launcher, checkpoints, args, memory=None):
        self.launcher = launcher
        # Those on disk, and those in memory if the script saves there, too.
        self.checkpoints = checkpoints
        self.memory = memory
        self.args = args
        self.now_s = 0.0
        self.useful_s = 0.0
        self.lost_s = dict.fromkeys(PARTS, 0.0)
        # The rest of the start before training goes on.
        self.starting_s = 0.0
        self.restarts_left = launcher.max_restarts
        # The useful work before the last start that is not on disk.
        self.not_on_disk_s = 0.0

    def replay(self, stops):
        for stop in stops:
            # A job that waits has no process that could fail.
            if stop.at_s >= self.now_s:
                from_memory = self.memory is not None and is_in_memory(stop, self.launcher)
                self.run_until(stop.at_s, is_stopped=True, from_memory=from_memory)
                self.react(stop)
                self.starting_s = self.args.start + (MEMORY_READ_S if from_memory else self.args.read)
        self.run_until(MONTH_S, is_stopped=False)
        return self

    def run_until(self, at_s, is_stopped, from_memory=False):
        """Starts the script and trains until `at_s`. What is useful of it depends on where the next start is from."""
        starting_s = min(self.starting_s, at_s - self.now_s)
        self.spend(RESTART, starting_s)
        ran_s = at_s - self.now_s
        stalled_s, kept_s, undone_s = self.checkpoints.after(ran_s)
        if self.memory:
            # The work between two checkpoints on disk includes the stalls for those in memory.
            stalls = self.memory.stall_s / (self.memory.every_s + self.memory.stall_s)
            on_disk_s = kept_s * (1 - stalls)
            stalled_in_memory_s, in_memory_s, redone_s = self.memory.after(ran_s - stalled_s)
            if from_memory:
                stalled_s, kept_s, undone_s = stalled_s + stalled_in_memory_s, in_memory_s, redone_s
                self.not_on_disk_s = max(in_memory_s - on_disk_s, 0) + (0 if on_disk_s else self.not_on_disk_s)
            elif is_stopped:
                stalled_s += (kept_s + undone_s) * stalls
                kept_s, undone_s = on_disk_s, undone_s * (1 - stalls)
                if not on_disk_s:
                    self.useful_s -= self.not_on_disk_s
                    undone_s += self.not_on_disk_s
                self.not_on_disk_s = 0
            else:
                stalled_s += stalled_in_memory_s
        self.lost_s[STALL] += stalled_s
        self.lost_s[REDONE] += undone_s if is_stopped else 0
        self.useful_s += kept_s if is_stopped else ran_s - stalled_s
        self.now_s = at_s

    def react(self, stop):
        reaction = self.launcher.reactions[stop.cause]
        self.spend(DETECTION, reaction.detected_s)
        failing = min(stop.failing_starts, self.launcher.tries)
        while not reaction.ends_job and self.restarts_left:
            self.restarts_left -= 1
            if not failing:
                self.spend(RESTART, reaction.restarted_s)
                return
            failing -= 1
            self.spend(AGAIN, reaction.restarted_s + first_use_s(self.args))
        self.spend(RESTART, self.args.requeue)
        self.restarts_left = self.launcher.max_restarts

    def spend(self, part, seconds):
        """Loses time, at most until the end of the month."""
        seconds = min(seconds, MONTH_S - self.now_s)
        self.lost_s[part] += seconds
        self.now_s += seconds


class Mean(NamedTuple):
    """The means of many months, in hours."""

    lost_h: float
    error_h: float
    parts_h: dict


def is_in_memory(stop, launcher):
    """Returns true if training goes on from memory after a stop."""
    return stop.cause in MEMORY_HELPS and min(stop.failing_starts, launcher.tries) < MEMORY_TRIES


def launchers(hang_s):
    """Returns the launchers. Each has its defaults, and a spare machine."""
    found = [
        Launcher("torchrun", {
            SOFTWARE: Reaction(0, TORCHRUN_RESTART_S),
            BAD: Reaction(0, TORCHRUN_RESTART_S),
            HANG: Reaction(hang_s, TORCHRUN_RESTART_S),
            LOST: Reaction(TORCHRUN_SPARE_S, ends_job=True),
            SILENT: Reaction(PERSON_S, ends_job=True),
            PLANNED: Reaction(0, ends_job=True),
        }, tries=math.inf, max_restarts=TORCHRUN_RESTARTS),
        Launcher("NVRx", {
            SOFTWARE: Reaction(0, NVRX_RESTART_S),
            BAD: Reaction(0, NVRX_RESTART_S),
            HANG: Reaction(hang_s, NVRX_RESTART_S),
            # Detection and restart were measured together.
            LOST: Reaction(0, NVRX_SPARE_S),
            SILENT: Reaction(PERSON_S, NVRX_SPARE_S),
            PLANNED: Reaction(0, NVRX_SPARE_S),
        }, tries=0),
        Launcher("ragent", {
            SOFTWARE: Reaction(0, RAGENT_RESTART_S),
            BAD: Reaction(0, RAGENT_RESTART_S),
            HANG: Reaction(hang_s, RAGENT_RESTART_S),
            LOST: Reaction(RAGENT_SILENT_S, RAGENT_RESTART_S),
            SILENT: Reaction(PERSON_S, RAGENT_RESTART_S),
            PLANNED: Reaction(0, RAGENT_RESTART_S),
        }, tries=RAGENT_TRIES),
    ]
    return [*found, found[-1]._replace(name="ragent, memory", has_memory=True)]


def first_use_s(args):
    return min(FIRST_USE_S, args.start)


def between_stops_s(nodes, rate):
    """Returns the mean time between two stops of a job, planned ones included."""
    per_day = nodes * rate / 1000 * sum(LLAMA3_STOPS.values()) / UNEXPECTED
    return DAY_S / per_day


def draw_month(rng, mean_s, again):
    """Returns the stops of a month."""
    causes, weights = list(LLAMA3_STOPS), list(LLAMA3_STOPS.values())
    stops, at_s = [], rng.expovariate(1 / mean_s)
    while at_s < MONTH_S:
        cause, = rng.choices(causes, weights)
        failing = failing_starts(rng, again) if cause == BAD else 0
        stops.append(Stop(at_s, cause, failing))
        at_s += rng.expovariate(1 / mean_s)
    return stops


def failing_starts(rng, again):
    """Returns how many further starts on a bad machine fail, if each does with the probability `again`."""
    if again >= 1:
        return math.inf
    count = 0
    while rng.random() < again:
        count += 1
    return count


def draw_months(args, nodes):
    """Returns the stops of all months of a job of `nodes` nodes: the same for each launcher."""
    rng = random.Random(f"{args.seed} {nodes}")
    mean_s = between_stops_s(nodes, args.failures)
    return [draw_month(rng, mean_s, args.again) for _ in range(args.months)]


def best_interval_s(stall_s, mean_s):
    """Returns the best time between two checkpoints, after Young and Daly."""
    return max(math.sqrt(2 * stall_s * mean_s) - stall_s, stall_s)


def mean_of(months, launcher, checkpoints, args, memory=None):
    """Replays the months, and returns the means."""
    replayed = [Month(launcher, checkpoints, args, memory).replay(stops) for stops in months]
    lost_h = [sum(month.lost_s.values()) / HOUR_S for month in replayed]
    parts_h = {part: statistics.fmean(month.lost_s[part] for month in replayed) / HOUR_S for part in PARTS}
    error_h = statistics.stdev(lost_h) / math.sqrt(len(lost_h))
    return Mean(statistics.fmean(lost_h), error_h, parts_h)


def rows(args):
    """Returns the name, launcher, kind of interval and stall of each row."""
    found = []
    for launcher in launchers(args.hang):
        for suffix, stall_s in (("", args.stall), (", asynchronous", args.copy)):
            for interval in (f"{args.every:g} min", "best"):
                found.append((launcher.name + suffix, launcher, interval, stall_s))
    return found


def checkpoints_of(args, launcher, interval, stall_s, nodes):
    every_s = args.every * 60
    if interval == "best":
        mean_s = between_stops_s(nodes, args.failures)
        if launcher.has_memory:
            # Only stops after which training goes on from disk count.
            again = args.again ** MEMORY_TRIES if launcher.tries >= MEMORY_TRIES else 0
            from_disk = sum(count for cause, count in LLAMA3_STOPS.items() if cause not in MEMORY_HELPS)
            mean_s *= sum(LLAMA3_STOPS.values()) / (from_disk + LLAMA3_STOPS[BAD] * again)
        every_s = best_interval_s(stall_s, mean_s)
    # A checkpoint does not begin before the last one is complete.
    return Checkpoints(max(every_s, args.stall - stall_s), stall_s, args.stall)


def memory_of(args, launcher, nodes):
    """Returns the checkpoints in memory, at their best interval."""
    if not launcher.has_memory:
        return None
    best_s = best_interval_s(MEMORY_STALL_S, between_stops_s(nodes, args.failures))
    return Checkpoints(max(best_s, MEMORY_WHOLE_S), MEMORY_STALL_S, MEMORY_WHOLE_S)


def duration(seconds):
    return f"{seconds / 60:.1f} min" if seconds < 100 * 60 else f"{seconds / HOUR_S:.1f} h"


def print_tables(args):
    """Prints the hours lost, and the parts of the largest job."""
    print(f"Hours lost of the {MONTH_S // HOUR_S} of a month. Checkpoints every {args.every:g} min, "
          "or at the best interval.\n")
    largest = max(args.nodes)
    results = {}
    for nodes in args.nodes:
        months = draw_months(args, nodes)
        for name, launcher, interval, stall_s in rows(args):
            checkpoints = checkpoints_of(args, launcher, interval, stall_s, nodes)
            memory = memory_of(args, launcher, nodes)
            results[name, interval, nodes] = checkpoints, mean_of(months, launcher, checkpoints, args, memory)

    table = Table([Column("launcher, checkpoints", 28), Column("every", 7),
                   *(Column(f"{nodes:,} nodes", 11, True) for nodes in args.nodes)], args.markdown)
    for name, _, interval, _ in rows(args):
        table.add(name, interval, *(f"{results[name, interval, nodes][1].lost_h:.1f}" for nodes in args.nodes))
    table.add("largest standard error", "", *(
        f"{max(mean.error_h for (*_, of), (_, mean) in results.items() if of == nodes):.1f}"
        for nodes in args.nodes))
    table.add("a stop every", "", *(duration(between_stops_s(nodes, args.failures)) for nodes in args.nodes))

    print(f"\nParts at {largest:,} nodes, in hours.\n")
    table = Table([Column("launcher, checkpoints", 28), Column("every", 8, True), Column("lost", 6, True),
                   Column("±", 4, True), *(Column(part, max(len(part), 7), True) for part in PARTS)], args.markdown)
    for name, _, interval, _ in rows(args):
        checkpoints, mean = results[name, interval, largest]
        table.add(name, duration(checkpoints.every_s), f"{mean.lost_h:.1f}", f"{mean.error_h:.1f}",
                  *(f"{mean.parts_h[part]:.1f}" for part in PARTS))


def assumptions(args):
    """Returns what the tables assume, with the sources: headings, and the lines below each."""
    share = {cause: f"{count / UNEXPECTED:.0%}" for cause, count in LLAMA3_STOPS.items()}
    return {
        "Parts": [
            f"{REDONE}: work since the last complete checkpoint, which is done again",
            f"{RESTART}: the launcher or the scheduler, the start of the script, and reading the checkpoint",
            f"{DETECTION}: from the fault until it is noticed",
            f"{STALL}: training waits for a checkpoint",
            f"{AGAIN}: starts on the bad machine that fail, until it is replaced",
            "±: the standard error of what is lost",
        ],
        "Published": [
            f"Llama 3 405B (arXiv 2407.21783, table 5): {UNEXPECTED} unexpected and {LLAMA3_STOPS[PLANNED]} planned "
            f"interruptions in {LLAMA3_DAYS} days on {LLAMA3_NODES:,} nodes of 8 GPUs, so {RATES['llama3']:.2f} "
            "unexpected ones in 1,000 node-days",
            f"its causes, grouped here by what a launcher sees: bad machine (GPU and its memory) {share[BAD]}, "
            f"software {share[SOFTWARE]}, lost machine (host, disk, power) {share[LOST]}, hang (network, NCCL) "
            f"{share[HANG]}, silent (data corruption, heat) {share[SILENT]}; and {share[PLANNED]} more are planned",
            f"Meta's RSC-1 (arXiv 2410.21680): {RATES['rsc1']:.2f} in 1,000 node-days (`--failures rsc1`)",
            "a collective of NCCL is aborted after 600 s, the default of torch; ft_launcher waits 45 min for a "
            "heartbeat, its default",
            "ft_launcher asks the GPUs before each restart whether they need a reset (NVRx's documentation)",
            "asynchronous checkpoints of torch stop training for a 10th to a 20th of the time "
            "(pytorch.org/blog/reducing-checkpointing-times)",
            "recovery from checkpoints takes 15 to 30 min with SageMaker HyperPod (AWS, 2025-12)",
        ],
        "Measured, on one machine with three agents (docs/performance.md)": [
            f"restart: torchrun {TORCHRUN_RESTART_S} s, NVRx {NVRX_RESTART_S} s; ragent {RAGENT_RESTART_S} s with "
            "1,000 agents without workers (benches/recovery.py)",
            f"a node is lost: torchrun's job is over after {TORCHRUN_SPARE_S} s, NVRx runs again after {NVRX_SPARE_S} "
            f"s, ragent notices it after {RAGENT_SILENT_S} s (benches/recovery.py)",
        ],
        "Assumed": [
            f"{args.failures:.2f} unexpected stops in 1,000 node-days, with the causes and planned stops of Llama 3; "
            "independent of each other, while processes start or train",
            f"a start takes {args.start:g} s (imports, CUDA, communicators), and reading the checkpoint "
            f"{args.read:g} s, with each launcher and any number of nodes",
            f"a checkpoint stops training for {args.stall:g} s, and an asynchronous one for {args.copy:g} s; both are "
            f"complete after {args.stall:g} s",
            f"a bad machine fails again {first_use_s(args):g} s after a start, with probability {args.again:g}",
            f"torchrun starts on it again until `--max-restarts {TORCHRUN_RESTARTS}` are used up; then, and after a "
            f"lost machine or a planned stop, the scheduler starts the job after {args.requeue:g} s, on good machines",
            "NVRx finds each bad machine at once; NVRx and ragent have a spare, and never use up `--max-restarts`",
            f"ragent starts on it {RAGENT_TRIES} times: it quarantines a node after {RAGENT_TRIES} failures, each "
            "within a minute of a start; if the fault shows later, ragent goes on trying, which costs much more",
            f"with memory, ragent also saves in memory, at the best interval for a stall of {MEMORY_STALL_S:g} s; a step is on two nodes {MEMORY_WHOLE_S} s after the beginning of its save, and loading it takes "
            f"{MEMORY_READ_S} s",
            f"after {MEMORY_TRIES} failed starts from memory, the next one is from disk, so a bad machine that fails at each "
            "start costs the memory; so does a silent fault, as all checkpoints since then are bad",
            f"a hang ends after {args.hang:g} s: the script sends no heartbeats, which NVRx and ragent could use",
            f"a person notices a silent fault after {PERSON_S / HOUR_S:g} h; all work since then is lost",
            "a planned stop takes one machine, and no script saves before it",
            "best interval: √(2wM) − w, at least w, with the stall w and the time M between two stops",
        ],
        "Left out": [
            "local checkpoints and in-process restarts of NVRx, torchft, `--standby` of ragent, checks of machines "
            "before a job: with each of them, less is lost",
            "the host of the rendezvous is lost: torchrun and NVRx then need the scheduler",
        ],
    }


def print_assumptions(args):
    for heading, lines in assumptions(args).items():
        print(f"\n{heading}:")
        for line in lines:
            # A number stays on the line of its unit.
            joined = re.sub(r"(\d) (?=(s|min|h)\b)", "\\1\N{NO-BREAK SPACE}", line)
            filled = textwrap.fill(joined, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
            print(filled.replace("\N{NO-BREAK SPACE}", " "))


def check(args):
    """Compares the simplest case with the formula, and prints the ratios. Returns true if they fit.

    Detection and restarts take no time, so that only stalls and work done again are left.
    """
    instant = argparse.Namespace(start=0, read=0, again=0, failures=RATES["llama3"], months=MONTHS, seed=1)
    launcher = Launcher("instant", dict.fromkeys(LLAMA3_STOPS, Reaction(0)), tries=0)
    mean_s = between_stops_s(LLAMA3_NODES, instant.failures)
    months = draw_months(instant, LLAMA3_NODES)
    stall_s = 10
    fits = True
    print(f"Check, {LLAMA3_NODES:,} nodes, without detection and restarts:")
    for every_s in (30 * 60, best_interval_s(stall_s, mean_s)):
        checkpoints = Checkpoints(every_s, stall_s, stall_s)
        found = mean_of(months, launcher, checkpoints, instant).lost_h * HOUR_S / MONTH_S
        formula = stall_s / every_s + every_s / (2 * mean_s)
        # The useful share, if the times between stops are exponential, is Δ/M / (e^((Δ + w)/M) − 1).
        exact = 1 - every_s / mean_s / math.expm1((every_s + stall_s) / mean_s)
        print(f"- every {duration(every_s)}: {found:.2%} lost, {found / formula:.3f} of w/Δ + Δ/2M, "
              f"{found / exact:.3f} of the exact loss")
        fits &= abs(found / formula - 1) < FORMULA_LIMIT and abs(found / exact - 1) < EXACT_LIMIT
    for name, launcher, interval, stall_s in rows(args):
        checkpoints = checkpoints_of(args, launcher, interval, stall_s, LLAMA3_NODES)
        memory = memory_of(args, launcher, LLAMA3_NODES)
        month = Month(launcher, checkpoints, args, memory).replay(months[0])
        missing_s = MONTH_S - month.useful_s - sum(month.lost_s.values())
        if abs(missing_s) > 1:
            print(f"error: {name}, {interval}: {missing_s:.0f} s are neither useful nor lost", file=sys.stderr)
            fits = False
    if not fits:
        print(f"error: the replay differs from the formula by more than {FORMULA_LIMIT:.0%}, or from the exact loss "
              f"by more than {EXACT_LIMIT:.0%}", file=sys.stderr)
    return fits


def rate(text):
    """Parses `--failures`."""
    return RATES[text] if text in RATES else positive(text)


def positive(text):
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"`{text}` is not a positive number")
    return number


def not_negative(text):
    return 0.0 if float(text) == 0 else positive(text)


def at_least(minimum):
    """Returns a parser of whole numbers."""
    def number(text):
        if int(text) < minimum:
            raise argparse.ArgumentTypeError(f"`{text}` is less than {minimum}")
        return int(text)
    return number


def probability(text):
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not between 0 and 1")
    return number


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", nargs="+", type=at_least(1), default=[8, 32, 128, 512, 2048], metavar="N",
                        help="sizes of the job (8 32 128 512 2048)")
    parser.add_argument("--failures", type=rate, default="llama3", metavar="RATE",
                        help=f"unexpected stops in 1,000 node-days: a number, or {' or '.join(RATES)} (%(default)s)")
    parser.add_argument("--every", type=positive, default=30, metavar="MINUTES",
                        help="work between two checkpoints (%(default)s)")
    for name, kind, default, what in (
        ("stall", positive, 10, "for which a checkpoint stops training"),
        ("copy", positive, 1, "for which an asynchronous checkpoint stops training"),
        ("start", not_negative, 180, "from the start of workers until they read the checkpoint"),
        ("read", not_negative, 60, "for reading the checkpoint"),
        ("requeue", not_negative, 900, "until the scheduler starts a job again"),
        ("hang", not_negative, 600, "until a hang ends"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="SECONDS",
                            help=f"seconds {what} (%(default)s)")
    parser.add_argument("--again", type=probability, default=1.0, metavar="P",
                        help="probability that a bad machine fails again at a start (%(default)s)")
    parser.add_argument("--months", type=at_least(2), default=MONTHS, metavar="N",
                        help="number of months (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="chooses the stops (%(default)s)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--check", action="store_true",
                        help="only compare the simplest case with the formula; exits with 1 if they differ")
    args = parser.parse_args()
    if args.copy > args.stall:
        parser.error("--copy is longer than --stall: an asynchronous checkpoint stops training for less time")
    return args


def main():
    args = parse_args()
    if not args.check:
        print_tables(args)
        print_assumptions(args)
        print()
    fits = check(args)
    sys.exit(args.check and not fits)


if __name__ == "__main__":
    main()
