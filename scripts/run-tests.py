#!/usr/bin/env python3
"""Runs all tests of the workspace, several test programs at a time.

    scripts/run-tests.py [--at-once N] [TARGET ...]        scripts/run-tests.py multi_node partition

`cargo test` runs one program after the other, and tests with real processes mostly wait. This builds them as `cargo test` does and
runs them side by side, the slowest first. Of a program that succeeds it prints one line, of another one everything. At the end it
prints the slowest tests.

`RUST_TEST_THREADS` is the number of tests that each program runs at once.
"""

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CARGO = os.environ.get("CARGO", "cargo")
# These take longest and are started first. `torch`, `simulation`, `conformance` and `chaos` keep processors busy. The others mostly
# wait, and fail if leases of a few seconds run out. So the busy ones run first, beside each other.
SLOWEST = ["torch", "simulation", "conformance", "chaos", "multi_node", "partition", "standbys", "attacks", "etcd", "schedulers", "ssh",
           "search", "single_node"]
# It waits for nothing, so it leaves the processors to the others.
YIELDING = {"simulation"}
# Its tests start several interpreters that import torch, which takes processors. With more of them at once, leases run out.
CROWDED = {"torch": 2 * (os.cpu_count() or 1)}
SHOWN = 20
TEST = re.compile(r"^test (.+?) \.\.\. (ok|FAILED)(?: <([\d.]+)s>)?$", re.MULTILINE)
RESULT = re.compile(r"^test result: (?:ok|FAILED)\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


class Program(NamedTuple):
    """A program with tests."""

    name: str
    path: str
    folder: str


class Run(NamedTuple):
    """The end of a program."""

    program: Program
    code: int
    output: str
    seconds: float

    @property
    def has_passed(self):
        return self.code == 0 and RESULT.search(self.output) is not None


def build(targets):
    """Builds the programs, and returns them with the slowest first."""
    command = [CARGO, "test", "--workspace", "--locked", "--no-run", "--message-format", "json-render-diagnostics"]
    for target in targets:
        command += ["--test", target]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    programs = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            target, folder = message["target"], str(Path(message["manifest_path"]).parent)
            name = target["name"] if "test" in target["kind"] else f"{target['name']} (unit tests)"
            programs.append(Program(name, message["executable"], folder))
    place = {name: place for place, name in enumerate(SLOWEST)}
    return sorted(programs, key=lambda program: place.get(program.name, len(SLOWEST)))


def run(program):
    # The time of each test is shown by programs of nightly Rust, or with this variable.
    env = os.environ | {"RUSTC_BOOTSTRAP": "1", "CARGO_MANIFEST_DIR": program.folder}
    if most := CROWDED.get(program.name):
        env["RUST_TEST_THREADS"] = str(min(most, int(env.get("RUST_TEST_THREADS", most))))
    yields = ["nice", "-n", "10"] if program.name in YIELDING else []
    command = [*yields, program.path, "-Z", "unstable-options", "--report-time"]
    began = time.monotonic()
    try:
        done = subprocess.run(command, cwd=program.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    except OSError as error:
        return Run(program, 1, f"failed to start it: {error}\n", 0)
    return Run(program, done.returncode, done.stdout, time.monotonic() - began)


def run_all(programs, at_once):
    """Yields each program's end as it comes."""
    waiting, ended = queue.SimpleQueue(), queue.SimpleQueue()
    for program in programs:
        waiting.put(program)

    def work():
        while True:
            try:
                program = waiting.get_nowait()
            except queue.Empty:
                return
            ended.put(run(program))

    for _ in range(at_once):
        threading.Thread(target=work, daemon=True).start()
    for _ in programs:
        yield ended.get()


def report(done):
    """Prints the end of a program."""
    if done.has_passed:
        passed, _, ignored = RESULT.search(done.output).groups()
        print(f"{done.program.name:<32} {passed:>5} passed, {ignored:>2} ignored {done.seconds:>7.1f} s", flush=True)
        return
    print(f"\n{done.program.name} FAILED (exit code {done.code}, {done.seconds:.1f} s):\n\n{done.output}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="programs that run side by side (%(default)s)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="only these targets (all, and the unit tests)")
    args = parser.parse_args()
    if not shutil.which(CARGO):
        sys.exit(f"error: `{CARGO}` is not on the PATH; install Rust: https://rustup.rs")
    programs = build(args.targets)
    began, failed, tests = time.monotonic(), [], []
    for done in run_all(programs, args.at_once):
        report(done)
        if not done.has_passed:
            failed.append(done.program.name)
        tests += [(float(seconds or 0), f"{done.program.name} {name}") for name, _, seconds in TEST.findall(done.output)]
    print(f"\nthe {SHOWN} slowest tests:")
    for seconds, name in sorted(tests, reverse=True)[:SHOWN]:
        print(f"{seconds:7.1f} s  {name}")
    print(f"\n{len(tests)} tests in {time.monotonic() - began:.0f} s")
    if failed:
        sys.exit(f"error: tests have failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
