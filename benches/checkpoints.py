#!/usr/bin/env python3
"""Measures what the checkpoints of `ragent.CheckpointManager` cost a training, in five modes that take turns.

    .venv/bin/python benches/checkpoints.py --ragent target/release/ragent [--seconds N] [--times N]

Two ranks train a model of 184 MB with its AdamW, divided by FSDP2. A step of the first table waits 25 ms, as for a GPU, and computes for
3 ms. A step of the second one computes all the time, so a write has no processor of its own.

| mode | what is saved |
|---|---|
| none | nothing |
| sync | `dcp.save` in the training thread, every 4 s |
| folder | CheckpointManager without memory, every 4 s |
| both | CheckpointManager with memory, in the folder every 4 s |
| memory | CheckpointManager with memory, in the folder once at the begin |

The interval is absurd: at the default of ten minutes, all differences are too small to see. Needs `cargo build --release -p ragent`, a Python
with torch 2.7 or newer, 4 GB of memory, and 3 GB in the folder for temporary files.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import Column, Table

MODULE = Path(__file__).resolve().parents[1] / "packaging" / "python"
MODES = ("none", "sync", "folder", "both", "memory")
WIDTH, LAYERS = 1750, 5
EVERY_S, NEVER_S = 4.0, 1000.0
WAIT_S, BUSY_S = 0.025, 0.003
# The number of stops that are shown.
LONGEST = 6


def worker(mode, is_busy, seconds, folder):
    """Trains, and prints what was measured, on rank 0."""
    import ragent
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    if mode == "folder":
        del os.environ["RAGENT_MEMORY_SOCKET"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    every = EVERY_S if mode in ("folder", "both") else NEVER_S
    checkpoints = ragent.CheckpointManager(folder, {"model": model, "optimizer": optimizer}, every=every)
    checkpoints.load()
    stops, begin, due = [], time.perf_counter(), time.perf_counter() + 1
    while True:
        compute(torch, is_busy)
        # All ranks make the same steps.
        now = torch.tensor(time.perf_counter() - begin)
        dist.all_reduce(now, op=dist.ReduceOp.MAX)
        if now.item() >= seconds:
            break
        start, step = time.perf_counter(), len(stops) + 1
        if mode == "sync" and begin + now.item() >= due:
            due += EVERY_S
            parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
            dcp.save(parts, checkpoint_id=f"{folder}/{step}")
        elif mode not in ("none", "sync"):
            checkpoints.save(step)
        stops.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        per_second = len(stops) / (time.perf_counter() - begin)
        print(json.dumps({"per_second": per_second, "stops": sorted(stops)[-LONGEST:], "stopped": sum(stops)}), flush=True)
    dist.barrier()
    # A write may go on, which nothing waits for.
    os._exit(0)


def compute(torch, is_busy):
    if is_busy:
        values = torch.randn(300, 300)
        for _ in range(40):
            values = (values @ values).tanh()
        return
    time.sleep(WAIT_S)
    end = time.perf_counter() + BUSY_S
    while time.perf_counter() < end:
        pass


def measure(args, mode, is_busy):
    """Runs a job, and returns what its rank 0 has printed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(MODULE), "PYTHON_EXEC": sys.executable, "GLOO_SOCKET_IFNAME": "lo"}
        words = [__file__, "--worker", mode, str(int(is_busy)), str(args.seconds), folder]
        command = [args.ragent, "--standalone", "--nproc-per-node", "2", *words]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=args.seconds + 120)
        lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
        if run.returncode != 0 or len(lines) != 1:
            sys.exit(f"error: the job of mode {mode} has failed with {run.returncode}:\n{run.stdout}\n{run.stderr}")
        return json.loads(lines[0])


def main():
    if sys.argv[1:2] == ["--worker"]:
        mode, is_busy, seconds, folder = sys.argv[2:]
        worker(mode, is_busy == "1", float(seconds), folder)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default="target/release/ragent")
    parser.add_argument("--seconds", type=float, default=20, help="how long each job trains (%(default)s)")
    parser.add_argument("--times", type=int, default=3, help="how often each mode takes its turn (%(default)s)")
    args = parser.parse_args()
    for is_busy in (False, True):
        print("steps that compute all the time:" if is_busy else "steps that wait as for a GPU:")
        table = Table([Column("mode", 8), Column("steps/s", 8, True), Column("stopped", 8, True), Column("longest stops, ms", 40)])
        found = {mode: [] for mode in MODES}
        for _ in range(args.times):
            for mode in MODES:
                found[mode].append(measure(args, mode, is_busy))
        for mode, runs in found.items():
            rate = statistics.median(run["per_second"] for run in runs)
            stopped = statistics.median(run["stopped"] for run in runs) / args.seconds
            stops = sorted(stop for run in runs for stop in run["stops"])[-LONGEST:]
            table.add(mode, f"{rate:.1f}", f"{stopped:.1%}", " ".join(f"{stop * 1000:.0f}" for stop in stops))
        load = os.getloadavg()[0]
        print(f"load average {load:.1f}, {os.cpu_count()} processors\n")


if __name__ == "__main__":
    main()
