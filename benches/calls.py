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
# Fewer calls where all ranks reduce a tensor, or where each call reports a checkpoint.
SLOW_CALLS = 200
EVERY = 10
LIMIT_S = 120


def measure(name, calls, call):
    """Prints the processor time of `call`, which gets ascending numbers that never repeat."""
    numbers = iter(range(1, 1 << 40))
    seconds = []
    for _ in range(REPETITIONS):
        began = time.process_time()
        for _ in range(calls):
            call(next(numbers))
        seconds.append(time.process_time() - began)
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"{name:<56} {1e6 * statistics.median(seconds) / calls:8.2f} us", flush=True)


def without_agent():
    """Measures calls in a script that no agent has started."""
    import ragent  # noqa: PLC0415

    measure("step(), without an agent", CALLS, lambda n: ragent.step(n, total=1 << 50))
    measure("notice(), without an agent", CALLS, lambda _: ragent.notice())


def worker(program):
    """Measures calls in a worker."""
    import ragent  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    measure("step(), with an agent", CALLS, lambda n: ragent.step(n, total=1 << 50))
    measure("notice(), without a notice", CALLS, lambda _: ragent.notice())
    dist.init_process_group("gloo")
    between = f"should_save(), not at a multiple of {EVERY}"
    measure(between, CALLS, lambda n: ragent.should_save(EVERY * n + 1, every=EVERY))
    at = f"should_save(), at a multiple of {EVERY}, {WORKERS} ranks with gloo"
    measure(at, SLOW_CALLS, lambda n: ragent.should_save(EVERY * n, every=EVERY))
    measure("saved()", SLOW_CALLS, lambda n: ragent.saved(n, seconds=0.1))
    dist.barrier()
    if dist.get_rank() == 0:
        subprocess.run([program, "notice", "save"], check=True, stdout=subprocess.DEVNULL)
    until = time.monotonic() + LIMIT_S
    while ragent.notice() is None:
        if time.monotonic() > until:
            raise SystemExit("error: the notice has not reached the worker")
        time.sleep(0.01)
    measure("notice(), with a notice", CALLS, lambda _: ragent.notice())
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
