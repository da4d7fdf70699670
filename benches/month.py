#!/usr/bin/env python3
"""Replays a month of a large training job, and prints the hours that it loses with each launcher.

    python3 benches/month.py [--nodes N ...] [--found PERCENT] [--failures llama3|rsc1|RATE] [--every MINUTES]

How much of a month is lost, and which part of that is work done again? Machines fail at a published
rate. The times of the launchers are those that the other benches have measured. Everything else is
assumed, and printed below the tables with its source.

1. The stops of a month are drawn: a Poisson process, and a cause for each stop. All launchers get the
   same stops.
2. A month is replayed stop by stop. Each second is useful work, or lost for one reason.
3. The result is the mean of many months, once with the given interval between checkpoints, and once
   with asynchronous ones at the best interval after Young and Daly.

Needs only Python, and takes seconds. `--check` compares the simplest case with the formula.
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
BAD, SOFTWARE, LOST, HANG = "bad machine", "software", "lost", "hang"
WRONG, SLOW, PLANNED = "wrong", "slow", "planned"

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
    # Silent data corruption 6: the job runs, but its work is wrong.
    WRONG: 6,
    # Thermal 6: the machine is slow, and so is the job. Its work is right.
    SLOW: 6,
    PLANNED: 47,
}
# After these, a machine has to be repaired.
BREAKS = (BAD, LOST, WRONG, SLOW, PLANNED)
UNEXPECTED = sum(LLAMA3_STOPS.values()) - LLAMA3_STOPS[PLANNED]
# Unexpected stops in 1,000 node-days. rsc1: arXiv 2410.21680, 11 months of Meta's cluster RSC-1.
RATES = {"llama3": 1000 * UNEXPECTED / (LLAMA3_DAYS * LLAMA3_NODES), "rsc1": 6.50}

# Until a person notices that a job computes nonsense, or is slow.
PERSON_S = HOUR_S
# The part of this time that a slow machine costs.
SLOWED = 0.5
# The restarts of a job before the scheduler starts it again, as in torchrun's examples.
TORCHRUN_RESTARTS = 3
# --ft-max-no-progress-cycles of ft_launcher: its default.
NVRX_RESTARTS = 3
# With the rule `spare-first`, all charges are forgiven after so much training with a new checkpoint.
FORGIVEN_S = 10 * 60

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
# With the rule `0.3`, a node is quarantined after so many failures, each within a minute of a start. The failure that
# stopped the training is not one of them.
QUARANTINE_TRIES = 3
# With the rule `0.3`, after so many failed starts from memory, the next one is from disk.
MEMORY_TRIES = 2
# With `--hang-timeout auto`, the culprit of a hang is killed after this time.
AUTO_S = 15 * 60

# Checkpoints in memory, in addition to those on disk. benches/memory.py: `save` of a GiB. That all ranks of a node
# reach it at the same time is assumed.
SAVE_S_PER_GIB = 0.09
# Assumed: the time until a step is on two nodes, and that for loading it, or fetching it from another node.
MEMORY_WHOLE_S = MEMORY_READ_S = 5

# The parts of what is lost.
REDONE, RESTART, DETECTION, STALL, AGAIN, WAIT = PARTS = (
    "redone", "restart", "detection", "stall", "bad machine", "no machine")


class Stop(NamedTuple):
    """A moment at which something stops the job."""

    at_s: float
    cause: str
    # True if a check of the machine finds its fault. Only used if the machine is bad.
    is_found: bool


class Spare(NamedTuple):
    """A machine without a place in the job."""

    # Until then it is a suspect, because it has failed. Suspects are the last choice.
    suspect_s: float
    # From then on it can be chosen. Before, it is known to be broken.
    back_s: float
    # From then on it works.
    good_s: float


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
    # How often it tries a bad machine again, if no check has found the fault.
    tries: float
    # The restarts of a job before it is over.
    max_restarts: float
    # True if ten minutes of training, and a new checkpoint, give all restarts back.
    forgives: bool = False
    # True if it checks machines after a failure.
    has_health: bool = True
    # True if a spare takes the place of a failed machine at once, unless it is a suspect.
    is_spare_first: bool = False
    # True if the script also saves in memory.
    has_memory: bool = False
    # True with asynchronous checkpoints on disk, `--hang-timeout auto`, `--standby` and `--notice`.
    has_flags: bool = False


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
        # The useful work that is in memory, and not on disk.
        self.not_on_disk_s = 0.0
        self.spares = [Spare(0, 0, 0)] * args.spares

    def replay(self, stops):
        start_s = self.args.start - (self.args.imports if self.launcher.has_flags else 0)
        for stop in stops:
            # A job that waits has no process that could fail.
            if stop.at_s >= self.now_s:
                self.run_until(stop.at_s, stop)
                if self.react(stop) and self.memory:
                    self.starting_s = start_s + MEMORY_READ_S
                else:
                    self.starting_s = start_s + self.args.read
                    self.useful_s -= self.not_on_disk_s
                    self.lost_s[REDONE] += self.not_on_disk_s
                    self.not_on_disk_s = 0
        self.run_until(MONTH_S)
        return self

    def run_until(self, at_s, stop=None):
        """Starts the script and trains until `at_s`. After a stop, what is newer than the last checkpoint is lost."""
        self.spend(RESTART, min(self.starting_s, at_s - self.now_s))
        ran_s = at_s - self.now_s
        stalled_s, kept_s, undone_s = self.checkpoints.after(ran_s)
        if self.memory:
            # The work between two checkpoints on disk includes the stalls for those in memory.
            on_disk_s = kept_s * self.memory.every_s / (self.memory.every_s + self.memory.stall_s)
            stalled_in_memory_s, kept_s, undone_s = self.memory.after(ran_s - stalled_s)
            stalled_s += stalled_in_memory_s
            if stop and stop.cause == PLANNED and self.launcher.has_flags:
                # All ranks save, and train until the step is on two nodes.
                kept_s, undone_s = kept_s + max(undone_s - MEMORY_WHOLE_S, 0), min(undone_s, MEMORY_WHOLE_S)
            self.not_on_disk_s = max(kept_s - on_disk_s, 0) + (0 if on_disk_s else self.not_on_disk_s)
        if self.launcher.forgives and kept_s and ran_s >= FORGIVEN_S:
            self.restarts_left = self.launcher.max_restarts
        self.lost_s[STALL] += stalled_s
        self.lost_s[REDONE] += undone_s if stop else 0
        self.useful_s += kept_s if stop else ran_s - stalled_s
        self.now_s = at_s

    def react(self, stop):
        """Loses the time until all workers are started again. Returns true if the memory of the nodes can be used."""
        launcher, reaction = self.launcher, self.launcher.reactions[stop.cause]
        self.spend(DETECTION, reaction.detected_s)
        failed_start_s = reaction.restarted_s + self.args.imports
        is_found = launcher.has_health and stop.is_found if stop.cause == BAD else stop.cause in BREAKS
        tries, is_over = 0, reaction.ends_job
        if not is_found and not is_over:
            # The failure is charged.
            tries = launcher.tries if stop.cause == BAD else 0
            self.spend(AGAIN, min(tries, self.restarts_left) * failed_start_s)
            is_over = tries >= self.restarts_left
            self.restarts_left -= tries + 1
        if is_over:
            self.restarts_left = launcher.max_restarts
        self.spend(RESTART, self.args.requeue if is_over else reaction.restarted_s)

        is_ready = True
        if stop.cause in BREAKS or (launcher.is_spare_first and stop.cause == SOFTWARE):
            good_s = self.now_s + (self.args.repair * HOUR_S if stop.cause in BREAKS else 0)
            # Without the rule, the launcher has tried often enough, or the scheduler chooses.
            is_set_aside = is_found or is_over or not launcher.is_spare_first
            failed = Spare(self.now_s + DAY_S, good_s if is_set_aside else self.now_s, good_s)
            is_ready = self.take_spare(failed, failed_start_s)
        in_memory = launcher.is_spare_first or tries < MEMORY_TRIES
        return in_memory and is_ready and not is_over and stop.cause != WRONG

    def take_spare(self, failed, failed_start_s):
        """Gives the place of a machine to a spare. Returns false if the job ends, and waits for a repair."""
        self.spares.append(failed)
        # If no spare is better than the failed machine, it keeps its place for another start.
        ready = sorted((spare for spare in self.spares if spare.back_s <= self.now_s),
                       key=lambda spare: (spare.suspect_s > self.now_s, spare is not failed, spare))
        good = [index for index, spare in enumerate(ready) if spare.good_s <= self.now_s]
        failing = good[0] if good else len(ready)
        taken = ready[failing] if good else min(self.spares, key=lambda spare: spare.good_s)
        self.restarts_left = max(self.restarts_left - failing, 0) if good else self.launcher.max_restarts
        self.spend(AGAIN, failing * failed_start_s)
        self.spend(WAIT, max(taken.good_s - self.now_s, 0))
        self.spares.remove(taken)
        return bool(good)

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


def launchers(args):
    """Returns the launchers. Each has its defaults."""
    hang_s, slow_s, is_spare_first = args.hang, PERSON_S * SLOWED, args.rule == "spare-first"
    ragent = Launcher("ragent", {
        SOFTWARE: Reaction(0, RAGENT_RESTART_S),
        BAD: Reaction(0, RAGENT_RESTART_S),
        HANG: Reaction(hang_s, RAGENT_RESTART_S),
        LOST: Reaction(RAGENT_SILENT_S, RAGENT_RESTART_S),
        WRONG: Reaction(PERSON_S, RAGENT_RESTART_S),
        SLOW: Reaction(slow_s, RAGENT_RESTART_S),
        PLANNED: Reaction(0, RAGENT_RESTART_S),
    }, tries=0 if is_spare_first else QUARANTINE_TRIES, max_restarts=args.max_restarts, forgives=is_spare_first,
        is_spare_first=is_spare_first)
    auto = ragent.reactions | {HANG: Reaction(min(hang_s, AUTO_S), RAGENT_RESTART_S)}
    return [
        Launcher("torchrun", {
            SOFTWARE: Reaction(0, TORCHRUN_RESTART_S),
            BAD: Reaction(0, TORCHRUN_RESTART_S),
            HANG: Reaction(hang_s, TORCHRUN_RESTART_S),
            LOST: Reaction(TORCHRUN_SPARE_S, ends_job=True),
            WRONG: Reaction(PERSON_S, ends_job=True),
            SLOW: Reaction(slow_s, ends_job=True),
            PLANNED: Reaction(0, ends_job=True),
        }, tries=math.inf, max_restarts=TORCHRUN_RESTARTS, has_health=False),
        Launcher("NVRx", {
            SOFTWARE: Reaction(0, NVRX_RESTART_S),
            BAD: Reaction(0, NVRX_RESTART_S),
            HANG: Reaction(hang_s, NVRX_RESTART_S),
            # Detection and restart were measured together.
            LOST: Reaction(0, NVRX_SPARE_S),
            WRONG: Reaction(PERSON_S, NVRX_SPARE_S),
            SLOW: Reaction(slow_s, NVRX_SPARE_S),
            PLANNED: Reaction(0, NVRX_SPARE_S),
        }, tries=math.inf, max_restarts=NVRX_RESTARTS, forgives=True),
        ragent,
        ragent._replace(name="ragent, memory", has_memory=True),
        ragent._replace(name="ragent, all flags", reactions=auto, has_memory=True, has_flags=True),
    ]


def between_stops_s(nodes, rate):
    """Returns the mean time between two stops of a job, planned ones included."""
    per_day = nodes * rate / 1000 * sum(LLAMA3_STOPS.values()) / UNEXPECTED
    return DAY_S / per_day


def draw_month(rng, mean_s, finder, found):
    """Returns the stops of a month. `finder` draws whether a fault is found."""
    causes, weights = list(LLAMA3_STOPS), list(LLAMA3_STOPS.values())
    stops, at_s = [], rng.expovariate(1 / mean_s)
    while at_s < MONTH_S:
        cause, = rng.choices(causes, weights)
        stops.append(Stop(at_s, cause, finder.random() < found))
        at_s += rng.expovariate(1 / mean_s)
    return stops


def draw_months(args, nodes):
    """Returns the stops of all months of a job of `nodes` nodes: the same for each launcher."""
    rng, finder = random.Random(f"{args.seed} {nodes}"), random.Random(f"{args.seed} {nodes} found")
    mean_s = between_stops_s(nodes, args.failures)
    return [draw_month(rng, mean_s, finder, args.found / 100) for _ in range(args.months)]


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
    """Returns the launcher, whether the interval is the best, and the stall of a checkpoint on disk, of each row."""
    return [(launcher, is_best, args.copy if is_best or launcher.has_flags else args.stall)
            for is_best in (False, True) for launcher in launchers(args)]


def checkpoints_of(args, launcher, is_best, stall_s, nodes):
    """Returns the checkpoints on disk, and those in memory if there are any, which are at their best interval."""
    every_s, mean_s, memory = args.every * 60, between_stops_s(nodes, args.failures), None
    if launcher.has_memory:
        save_s = args.gib * SAVE_S_PER_GIB
        memory = Checkpoints(max(best_interval_s(save_s, mean_s), MEMORY_WHOLE_S), save_s, MEMORY_WHOLE_S)
        # For those on disk, only stops after which training goes on from disk count.
        not_found = 0 if launcher.is_spare_first else 1 - args.found / 100
        mean_s *= sum(LLAMA3_STOPS.values()) / (LLAMA3_STOPS[WRONG] + LLAMA3_STOPS[BAD] * not_found)
    if is_best:
        every_s = best_interval_s(stall_s, mean_s)
    # A checkpoint does not begin before the last one is complete.
    return Checkpoints(max(every_s, args.stall - stall_s), stall_s, args.stall), memory


def duration(seconds):
    return f"{seconds / 60:.1f} min" if seconds < 100 * 60 else f"{seconds / HOUR_S:.1f} h"


def print_tables(args):
    """Prints the hours lost, and the parts of the largest job."""
    largest, parts = max(args.nodes), []
    months = {nodes: draw_months(args, nodes) for nodes in args.nodes}
    for is_best in (False, True):
        kind = "Asynchronous checkpoints at the best interval" if is_best else f"Checkpoints every {args.every:g} min"
        print(f"Hours lost of the {MONTH_S // HOUR_S} of a month. {kind}.\n")
        table = Table([Column("launcher", 20), *(Column(f"{nodes:,} nodes", 11, True) for nodes in args.nodes)],
                      args.markdown)
        for launcher, _, stall_s in (row for row in rows(args) if row[1] == is_best):
            cells = []
            for nodes in args.nodes:
                checkpoints, memory = checkpoints_of(args, launcher, is_best, stall_s, nodes)
                mean = mean_of(months[nodes], launcher, checkpoints, args, memory)
                cells.append(f"{mean.lost_h:.1f}")
                if nodes == largest:
                    parts.append((launcher.name, checkpoints.every_s, mean))
            table.add(launcher.name, *cells)
        print()
    print(f"A stop every {', '.join(duration(between_stops_s(nodes, args.failures)) for nodes in args.nodes)}.")

    print(f"\nParts at {largest:,} nodes, in hours.\n")
    table = Table([Column("launcher", 18), Column("every", 8, True), Column("lost", 6, True), Column("±", 4, True),
                   *(Column(part, max(len(part), 7), True) for part in PARTS)], args.markdown)
    for name, every_s, mean in parts:
        table.add(name, duration(every_s), f"{mean.lost_h:.1f}", f"{mean.error_h:.1f}",
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
            f"{WAIT}: all spares are broken, and the job waits for the next repair",
            "±: the standard error of what is lost",
        ],
        "Published": [
            f"Llama 3 405B (arXiv 2407.21783, table 5): {UNEXPECTED} unexpected and {LLAMA3_STOPS[PLANNED]} planned "
            f"interruptions in {LLAMA3_DAYS} days on {LLAMA3_NODES:,} nodes of 8 GPUs, so {RATES['llama3']:.2f} "
            "unexpected ones in 1,000 node-days",
            f"its causes, grouped here by what a launcher sees: bad machine (GPU and its memory) {share[BAD]}, "
            f"software {share[SOFTWARE]}, lost machine (host, disk, power) {share[LOST]}, hang (network, NCCL) "
            f"{share[HANG]}, wrong work (data corruption) {share[WRONG]}, slow (heat) {share[SLOW]}; and "
            f"{share[PLANNED]} more are planned",
            f"Meta's RSC-1 (arXiv 2410.21680): {RATES['rsc1']:.2f} in 1,000 node-days (`--failures rsc1`), with the "
            "causes of Llama 3",
            "a collective of NCCL is aborted after 600 s, the default of torch; ft_launcher waits 45 min for a "
            "heartbeat, its default",
            "ft_launcher asks the GPUs before each restart whether they need a reset (NVRx's documentation); so does "
            f"ragent. ft_launcher ends a job after {NVRX_RESTARTS} starts without progress, its default",
            "asynchronous checkpoints of torch stop training for a 10th to a 20th of the time "
            "(pytorch.org/blog/reducing-checkpointing-times)",
            "recovery from checkpoints takes 15 to 30 min with SageMaker HyperPod (AWS, 2025-12)",
        ],
        "Measured, on one machine with three agents (docs/performance.md)": [
            f"restart: torchrun {TORCHRUN_RESTART_S} s, NVRx {NVRX_RESTART_S} s; ragent {RAGENT_RESTART_S} s with "
            "1,000 agents without workers (benches/recovery.py)",
            f"a node is lost: torchrun's job is over after {TORCHRUN_SPARE_S} s, NVRx runs again after {NVRX_SPARE_S} "
            f"s, ragent notices it after {RAGENT_SILENT_S} s (benches/recovery.py)",
            f"`save` in memory takes {SAVE_S_PER_GIB * 1000:g} ms for a GiB of one rank (benches/memory.py)",
        ],
        "Assumed": [
            f"{args.failures:.2f} unexpected stops in 1,000 node-days, with the causes and planned stops of Llama 3; "
            "independent of each other, while processes start or train",
            f"a start takes {args.start:g} s (imports, CUDA, communicators), and reading the checkpoint "
            f"{args.read:g} s, with each launcher and any number of nodes",
            f"a checkpoint stops training for {args.stall:g} s, and an asynchronous one for {args.copy:g} s; both are "
            f"complete after {args.stall:g} s",
            f"a check of NVRx or ragent finds the fault of {args.found:g} % of the bad machines; the others fail again "
            f"{args.imports:g} s after each start",
            f"torchrun starts on a bad machine again until `--max-restarts {TORCHRUN_RESTARTS}` are used up; then, and "
            f"after a lost machine or a planned stop, the scheduler starts the job after {args.requeue:g} s",
            f"NVRx starts on one that is not found {NVRX_RESTARTS} times; then the scheduler starts the job",
            f"with the rule `spare-first`, a spare takes the place at the first failure, and {FORGIVEN_S // 60} min of "
            "training with a new checkpoint give back all restarts; a machine that has failed and is not found is the "
            "last choice for 24 h",
            f"with the rule `0.3`, ragent starts on a bad machine {QUARANTINE_TRIES} times, and is over after "
            f"`--max-restarts` in all; after {MEMORY_TRIES} failed starts from memory, the next one is from disk",
            f"ragent has the rule `{args.rule}` and `--max-restarts {args.max_restarts}` here",
            f"{args.spares} spares wait at first, and a broken machine is good again after {args.repair:g} h; if no "
            "machine is ready, the job ends, and starts after the next repair",
            f"with memory, ragent saves at the best interval for a stall of {args.gib * SAVE_S_PER_GIB:.2f} s: "
            f"{args.gib:g} GiB of each rank; a step is on two nodes {MEMORY_WHOLE_S} s after its save began, and "
            f"loading it takes {MEMORY_READ_S} s",
            f"all flags: asynchronous checkpoints on disk, `--hang-timeout auto` ({AUTO_S} s, so a shorter time-out of "
            f"NCCL comes first), `--standby` (a start is {args.imports:g} s shorter), `--notice` (all ranks save "
            "before a planned stop)",
            f"a hang ends after {args.hang:g} s: the script sends no heartbeats, which NVRx and ragent could use",
            f"a person notices wrong work or a slow machine after {PERSON_S / HOUR_S:g} h; wrong work is lost, with "
            f"what is in memory, and a slow machine costs {SLOWED * 100:g} % of the time",
            "a planned stop takes one machine, and without `--notice` no script saves before it",
            "best interval: √(2wM) − w, at least w, with the stall w and the time M between two stops",
        ],
        "Left out": [
            "local checkpoints and in-process restarts of NVRx, torchft, checks of machines before a job: with each of "
            "them, less is lost",
            "a wrong suspicion, and a machine whose fault shows later than its first use of the GPU",
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
    instant = argparse.Namespace(start=0, read=0, imports=0, found=100, spares=0, repair=0, failures=RATES["llama3"],
                                 months=MONTHS, seed=1)
    launcher = Launcher("instant", dict.fromkeys(LLAMA3_STOPS, Reaction(0)), tries=0, max_restarts=math.inf)
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
    for launcher, is_best, stall_s in rows(args):
        checkpoints, memory = checkpoints_of(args, launcher, is_best, stall_s, LLAMA3_NODES)
        month = Month(launcher, checkpoints, args, memory).replay(months[0])
        missing_s = MONTH_S - month.useful_s - sum(month.lost_s.values())
        if abs(missing_s) > 1:
            print(f"error: {launcher.name}: {missing_s:.0f} s are neither useful nor lost", file=sys.stderr)
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


def percent(text):
    number = float(text)
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"`{text}` is not between 0 and 100")
    return number


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", nargs="+", type=at_least(1), default=[8, 128, 512, 2048], metavar="N",
                        help="sizes of the job (8 128 512 2048)")
    parser.add_argument("--failures", type=rate, default="llama3", metavar="RATE",
                        help=f"unexpected stops in 1,000 node-days: a number, or {' or '.join(RATES)} (%(default)s)")
    parser.add_argument("--every", type=positive, default=30, metavar="MINUTES",
                        help="work between two checkpoints (%(default)s)")
    for name, kind, default, what in (
        ("stall", positive, 10, "for which a checkpoint stops training"),
        ("copy", positive, 1, "for which an asynchronous checkpoint stops training"),
        ("start", not_negative, 180, "from the start of workers until they read the checkpoint"),
        # With torch alone it was 11 s on two processors (benches/standby.py --only kill, without standbys).
        ("imports", not_negative, 30, "of it before a worker uses its GPU, where a bad one fails"),
        ("read", not_negative, 60, "for reading the checkpoint"),
        ("requeue", not_negative, 900, "until the scheduler starts a job again"),
        ("hang", not_negative, 600, "until a hang ends"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="SECONDS",
                            help=f"seconds {what} (%(default)s)")
    parser.add_argument("--found", type=percent, default=50, metavar="PERCENT",
                        help="share of bad machines whose fault a check finds (%(default)s)")
    parser.add_argument("--rule", choices=["spare-first", "0.3"], default="spare-first",
                        help="what ragent does with a failed machine (%(default)s)")
    parser.add_argument("--max-restarts", type=at_least(0), default=10, metavar="N",
                        help="restarts of ragent (%(default)s)")
    parser.add_argument("--spares", type=at_least(0), default=16, metavar="N",
                        help="machines that wait for a place (%(default)s)")
    parser.add_argument("--repair", type=not_negative, default=24, metavar="HOURS",
                        help="hours until a broken machine is good again (%(default)s)")
    parser.add_argument("--gib", type=positive, default=7.1, metavar="GIB",
                        help="what a rank saves in memory (%(default)s: 70 billion parameters on 128 GPUs)")
    parser.add_argument("--months", type=at_least(2), default=MONTHS, metavar="N",
                        help="number of months (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="chooses the stops (%(default)s)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--check", action="store_true",
                        help="only compare the simplest case with the formula; exits with 1 if they differ")
    args = parser.parse_args()
    if args.copy > args.stall:
        parser.error("--copy is longer than --stall: an asynchronous checkpoint stops training for less time")
    if args.imports > args.start:
        parser.error("--imports is longer than --start, which includes it")
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
