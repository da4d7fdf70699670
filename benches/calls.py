#!/usr/bin/env python3
"""Measures what the calls of the Python module `ragent` cost a worker.

    .venv/bin/python benches/calls.py --ragent target/release/ragent

It runs itself as a script without an agent, and then as two workers of an agent. Each figure is the processor time of a call, of all
threads of the process: the median of several repetitions.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODULE = Path(__file__).resolve().parents[1] / "packaging" / "python"
WORKERS = 2
CALLS, REPETITIONS = 20_000, 7
# Calls that send a message or reduce a tensor, which take longer.
SLOW_CALLS = 200
EVERY = 10
LIMIT_S = 120


def show(name, calls):
    """Prints the microseconds of a call, from the seconds of `calls` calls in each repetition."""
    def measure(repeat):
        seconds = []
        for _ in range(REPETITIONS):
            began = time.process_time()
            repeat()
            seconds.append(time.process_time() - began)
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"{name:<56} {1e6 * statistics.median(seconds) / calls:8.2f} us", flush=True)
    return measure


def repeated(call, calls):
    """Returns a function that calls `call` with ascending numbers, which never repeat."""
    numbers = iter(range(1, 1 << 40))

    def repeat():
        for _ in range(calls):
            call(next(numbers))
    return repeat


def without_agent():
    """Measures calls in a script that no agent has started."""
    import ragent  # noqa: PLC0415

    show("step(), without an agent", CALLS)(repeated(lambda n: ragent.step(n, 1 << 50), CALLS))
    show("notice(), without an agent", CALLS)(repeated(lambda _: ragent.notice(), CALLS))


def worker(program):
    """Measures calls in a worker."""
    import ragent  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    show("step(), with an agent", CALLS)(repeated(lambda n: ragent.step(n, 1 << 50), CALLS))
    show("notice(), without a notice", CALLS)(repeated(lambda _: ragent.notice(), CALLS))
    dist.init_process_group("gloo")
    between = repeated(lambda n: ragent.should_save(EVERY * n + 1, EVERY), CALLS)
    show(f"should_save(), not at a multiple of {EVERY}", CALLS)(between)
    at = repeated(lambda n: ragent.should_save(EVERY * n, EVERY), SLOW_CALLS)
    show(f"should_save(), at a multiple of {EVERY}, {WORKERS} ranks with gloo", SLOW_CALLS)(at)
    show("saved()", SLOW_CALLS)(repeated(lambda n: ragent.saved(n, seconds=0.1), SLOW_CALLS))
    dist.barrier()
    if dist.get_rank() == 0:
        subprocess.run([program, "notice", "save"], check=True, stdout=subprocess.DEVNULL)
    until = time.monotonic() + LIMIT_S
    while ragent.notice() is None:
        if time.monotonic() > until:
            raise SystemExit("error: the notice has not reached the worker")
        time.sleep(0.01)
    show("notice(), with a notice", CALLS)(repeated(lambda _: ragent.notice(), CALLS))
    dist.barrier()
    dist.destroy_process_group()


def main():
    """Starts the script, and then the workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default="target/release/ragent")
    parser.add_argument("--as", dest="part", choices=["script", "worker"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "script":
        return without_agent()
    if options.part == "worker":
        return worker(options.ragent)
    program = os.path.abspath(options.ragent)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "PYTHONPATH": str(MODULE), "PYTHON_EXEC": sys.executable}
        words = [__file__, "--ragent", program, "--as"]
        subprocess.run([sys.executable, *words, "script"], env=environment, check=True)
        agent = [program, "--rdzv-endpoint", "127.0.0.1:0", "--nproc-per-node", str(WORKERS), "--notice", "60"]
        done = subprocess.run([*agent, *words, "worker"], env=environment, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"error: the agent exits with {done.returncode}:\n{done.stderr}")


if __name__ == "__main__":
    main()
