#!/usr/bin/env python3
"""Changes the code of the state machines in many places, one at a time, and prints the changes that no test notices.

    scripts/mutants.py [--seed N] [--count N] [PACKAGE ...]

cargo-mutants lists the possible changes; the seed chooses some of them. The changes are made in a copy of the project.
`.cargo/mutants.toml` has the files that are changed and the tests that are run. Returns 1 if the tests notice less than 95 %
of the changes. Everything about a run is in `target/mutants/mutants.out`.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARGO = os.environ.get("CARGO", "cargo")
FOLDER = ROOT / "target" / "mutants"
GOAL = 95
# Exit codes of cargo-mutants.
MISSED, TIMED_OUT = 2, 3
FIELDS = "StructField"
# A short simulation, few inputs for the store, and builds without debug information, which are faster.
SHORT = {"CARGO_PROFILE_DEV_DEBUG": "0",
         "SEEDS": "50", "ETCD_SEEDS": "50", "NOTICE_SEEDS": "15", "HEALTH_SEEDS": "10", "TAKEOVER_SEEDS": "8", "MEMORY_SEEDS": "8",
         "STALL_SEEDS": "4", "BUDGET_SEEDS": "2", "CASES": "300"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="chooses the changes")
    parser.add_argument("--count", type=int, default=200, help="number of changes")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="packages that are changed; all without it")
    args = parser.parse_args()
    os.chdir(ROOT)
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = [CARGO, "mutants", "--level=error", *(f"--package={package}" for package in args.packages)]
    possible = json.loads(subprocess.check_output([*command, "--list", "--json"]))
    command += ["--colors=never", f"--output={FOLDER}"]
    command += [f"--re=^{re.escape(change['name'])}$" for change in chosen(possible, args)]
    code = subprocess.run(command, env=os.environ | SHORT, check=False).returncode
    if code not in (0, MISSED, TIMED_OUT):
        sys.exit(code)

    counts = {}
    for outcome in json.loads((FOLDER / "mutants.out" / "outcomes.json").read_text())["outcomes"]:
        if outcome["scenario"] != "Baseline":
            counts.setdefault(outcome["scenario"]["Mutant"]["package"], Counter())[outcome["summary"]] += 1
    counts["all"] = sum(counts.values(), Counter())
    for package, count in sorted(counts.items()):
        missed, timeouts = count["MissedMutant"], count["Timeout"]
        tried = count["CaughtMutant"] + timeouts + missed
        print(f"{package}: {tried} changes, {missed} missed, {timeouts} noticed by a time-out")
    tried = sum(counts["all"][outcome] for outcome in ("CaughtMutant", "Timeout", "MissedMutant"))
    noticed = 100 * (1 - counts["all"]["MissedMutant"] / max(tried, 1))
    print(f"{noticed:.1f} % are noticed; {GOAL} % is the goal")
    sys.exit(noticed < GOAL)


def chosen(possible, args):
    """Returns the sample. cargo-mutants 27.1 deletes fields whatever `--re` is, so these changes are always in it."""
    always = [change for change in possible if change["genre"] == FIELDS]
    others = sorted((change for change in possible if change["genre"] != FIELDS), key=lambda change: change["name"])
    count = max(0, min(args.count - len(always), len(others)))
    return always + random.Random(args.seed).sample(others, count)


if __name__ == "__main__":
    main()
