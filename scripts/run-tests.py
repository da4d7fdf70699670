#!/usr/bin/env python3
"""Runs all tests of the workspace, several test programs at a time.

    scripts/run-tests.py ['[VARIABLE=VALUE ...] TARGET [ARGUMENT ...]' ...]
    scripts/run-tests.py python partition 'WORKER=python multi_node failure:: loss::'

`cargo test` runs one program after the other, and tests with real processes mostly wait. This builds them as `cargo test` does and
runs the three kinds of programs below side by side. `python` is `pytest tests/python`.
Of a program that succeeds it prints one line, of another one everything. At the end it prints the slowest tests.
"""

import argparse
import contextlib
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
CPUS = os.cpu_count() or 1


class Kind(NamedTuple):
    """A kind of programs. Four programs run at once: a simulation, a computing one and two waiting ones. When no simulation or computing
    program is left, another waiting one takes its place."""

    # Tests that run at once.
    threads: int
    nice: int
    names: tuple


KINDS = {
    # Never waits, so it has the lowest priority.
    "simulation": Kind(CPUS, 10, ("simulation",)),
    # Their workers import torch, which takes four seconds of CPU time each.
    "computing": Kind(CPUS, 0, ("torch", "conformance", "python")),
    # All others. With more of these tests beside the computing programs, leases run out. The longest programs come first.
    "waiting": Kind(CPUS, 0, ("standbys", "ssh", "multi_node", "attacks", "memory", "etcd", "chaos", "single_node")),
}
# Not in the build of all programs: the simulation is optimized, and pytest is not built.
APART = ("simulation", "python")
SHOWN = 20
TEST = re.compile(r"^test (.+?) \.\.\. (ok|FAILED)(?: <([\d.]+)s>)?$", re.MULTILINE)
PYTEST = re.compile(r"^([\d.]+)s call +(\S+)$", re.MULTILINE)
RESULT = re.compile(r"^test result: (?:ok|FAILED)\. (\d+) passed; \d+ failed; (\d+) ignored", re.MULTILINE)
PYTEST_RESULT = re.compile(r"^(\d+) passed(?:, (\d+) skipped)?.* in [\d.]+s", re.MULTILINE)


class Program(NamedTuple):
    """A program with tests."""

    name: str
    command: list
    folder: Path
    variables: dict = {}

    @property
    def kind(self):
        return next((kind for kind, at in KINDS.items() if self.name in at.names), "waiting")

    @property
    def place(self):
        """Its place among the programs of its kind."""
        names = KINDS[self.kind].names
        return names.index(self.name) if self.name in names else len(names)


class Run(NamedTuple):
    """The end of a program."""

    program: Program
    code: int
    output: str
    seconds: float
    # CPU time of the program and of its child processes.
    cpu_seconds: float

    @property
    def counts(self):
        """Tests that have passed, and those that were not run; `None` if it did not get to its end."""
        found = RESULT.search(self.output) or PYTEST_RESULT.search(self.output)
        return found and [int(count or 0) for count in found.groups()]

    @property
    def tests(self):
        """The time and the name of each test."""
        found = [(seconds, name) for name, _, seconds in TEST.findall(self.output)] or PYTEST.findall(self.output)
        return [(float(seconds or 0), f"{self.program.name} {name}") for seconds, name in found]


def parsed(target):
    """Returns the name of a target, and its variables and arguments."""
    words = target.split()
    count = next((count for count, word in enumerate(words) if "=" not in word), 0)
    name, *arguments = words[count:]
    return name, (dict(word.split("=", 1) for word in words[:count]), arguments)


def build(targets):
    """Builds the programs, and returns them. `targets` has the variables and arguments of each; if it is empty, all are built."""
    test, as_json = [CARGO, "test", "--locked", "--no-run"], ["--message-format", "json-render-diagnostics"]
    names = [word for name in targets if name not in APART for word in ("--test", name)]
    builds = [[CARGO, "build", "--locked", "--workspace"]] if "python" in targets else []
    if names or not targets:
        builds.append([*test, "--workspace", *names])
    if not targets or "simulation" in targets:
        builds.append([*test, "-p", "ragent-tests", "--profile", "simulation", "--test", "simulation"])
    programs = []
    for command in builds:
        # That of the workspace is not optimized.
        programs = [program for program in programs if program.name != "simulation"]
        built = subprocess.run([*command, *as_json], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if built.returncode:
            sys.exit(built.returncode)
        for line in built.stdout.splitlines():
            message = json.loads(line)
            if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
                target, folder = message["target"], Path(message["manifest_path"]).parent
                name = target["name"] if "test" in target["kind"] else f"{target['name']} (unit tests)"
                # The time of each test is shown by programs of nightly Rust, or with RUSTC_BOOTSTRAP.
                variables, arguments = targets.get(name, ({}, []))
                command = [message["executable"], "-Z", "unstable-options", "--report-time", *arguments]
                programs.append(Program(name, command, folder, variables))
    if not targets or "python" in targets:
        variables, arguments = targets.get("python", ({}, []))
        command = [ROOT / ".venv/bin/python", "-m", "pytest", "-q", "-n", 2, "--durations", SHOWN, "tests/python", *arguments]
        programs.append(Program("python", command, ROOT, variables))
    return programs


def run(program):
    env = os.environ | {"RUSTC_BOOTSTRAP": "1", "CARGO_MANIFEST_DIR": str(program.folder),
                        "RUST_TEST_THREADS": str(KINDS[program.kind].threads)} | program.variables
    command = ["nice", "-n", str(KINDS[program.kind].nice), *map(str, program.command)]
    began = time.monotonic()
    try:
        child = subprocess.Popen(command, cwd=program.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        return Run(program, 1, f"failed to start it: {error}\n", 0, 0)
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return Run(program, child.returncode, output, time.monotonic() - began, usage.ru_utime + usage.ru_stime)


def run_all(programs):
    """Yields each program's end as it comes."""
    ended = queue.SimpleQueue()
    left = {kind: queue.SimpleQueue() for kind in KINDS}
    for program in sorted(programs, key=lambda program: program.place):
        left[program.kind].put(program)

    def work(*kinds):
        for kind in kinds:
            with contextlib.suppress(queue.Empty):
                while True:
                    ended.put(run(left[kind].get_nowait()))

    for kinds in [("simulation", "waiting"), ("computing", "waiting"), ("waiting",), ("waiting",)]:
        threading.Thread(target=work, args=kinds, daemon=True).start()
    for _ in programs:
        yield ended.get()


def report(done):
    """Prints the result of a program. Returns true if it has passed."""
    if done.code == 0 and done.counts:
        passed, ignored = done.counts
        print(f"{done.program.name:<32} {passed:>5} passed, {ignored:>2} ignored {done.seconds:>7.1f} s {done.cpu_seconds:>7.1f} s CPU", flush=True)
        return True
    print(f"\n{done.program.name} FAILED (exit code {done.code}, {done.seconds:.1f} s):\n\n{done.output}", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="only these targets, with variables and arguments for their programs (all, and the unit tests)")
    args = parser.parse_args()
    if not shutil.which(CARGO):
        sys.exit(f"error: `{CARGO}` is not on the PATH; install Rust: https://rustup.rs")
    programs = build(dict(map(parsed, args.targets)))
    began, failed, tests = time.monotonic(), [], []
    for done in run_all(programs):
        if not report(done):
            failed.append(done.program.name)
        tests += done.tests
    print(f"\nthe {SHOWN} slowest tests:")
    for seconds, name in sorted(tests, reverse=True)[:SHOWN]:
        print(f"{seconds:7.1f} s  {name}")
    print(f"\n{len(programs)} programs in {time.monotonic() - began:.0f} s")
    if failed:
        sys.exit(f"error: tests have failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
