#!/usr/bin/env python3
"""Trains a small network while the number of ranks changes, and compares it with the training that nothing has disturbed.

    .venv/bin/python benches/resizing.py [--resizes N] [--seed N]

A training has 5 epochs of 1,003 samples, with 24 samples in a step. One process for each rank trains with DDP and gloo. After three to six
steps, all of them are killed, and another number of ranks (1 to 7) goes on from a checkpoint, which is saved at every second step. The seed
chooses the numbers. The weights at the end are compared with those of one process with `DistributedSampler`, in float64.

| way | data of a rank |
|---|---|
| GlobalBatchSampler | its share of 24 samples, in micro-batches of 1 to 24 |
| DistributedSampler | 12 samples in a step, and the number of the batch is saved: what most scripts do |
| divided | the same with 24 divided by the number of ranks, rounded down |
| Elastic… | torch's `ElasticDistributedSampler`, with the number of samples that are done |

Samples count as skipped or repeated in an epoch if the weights at the end have learned from them too seldom or too often.
"""

import argparse
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from table import Column, Table
from torch.distributed.elastic.utils.data import ElasticDistributedSampler
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packaging" / "python"))
import ragent

WAYS = ("GlobalBatchSampler", "DistributedSampler", "divided", "Elastic…")
SAMPLES, BATCH, EPOCHS, SEED = 1003, 24, 5, 7
STEPS = EPOCHS * -(-SAMPLES // BATCH)
RANKS, FEWEST, MOST, MICRO = (1, 2, 3, 4, 5, 6, 7), 3, 6, (1, 2, 3, 5, 7, 24)
SAVE_EVERY = 2
KILLED = 9


def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 16, generator=generator)
    return TensorDataset(torch.arange(SAMPLES), inputs, (inputs @ torch.randn(16, 1, generator=generator)).sin())


def parts():
    """Returns what is trained."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    return {"net": net, "optimizer": optimizer, "schedule": torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=2 * STEPS)}


def steps_of(way, samples, position, sampler, model, ranks):
    """Yields the micro-batches of each step. Changes `position` to that after the step."""
    if sampler is not None:
        loader = DataLoader(samples, batch_sampler=sampler)
        for position["epoch"] in range(sampler.epoch, EPOCHS):
            yield from sampler.steps(loader, model)
        return
    size = BATCH // ranks if way == "divided" else BATCH // 2
    for epoch in range(position["epoch"], EPOCHS):
        is_elastic, done = way == "Elastic…", position["done"]
        if is_elastic and done >= SAMPLES:
            position["done"] = 0
            continue
        theirs = ElasticDistributedSampler(samples, start_index=done) if is_elastic else DistributedSampler(samples, seed=SEED)
        theirs.set_epoch(epoch)
        for number, batch in enumerate(DataLoader(samples, batch_size=size, sampler=theirs), start=1):
            if is_elastic or number > done:
                position.update(epoch=epoch, done=done + number * size * ranks if is_elastic else number)
                yield [(batch, 1.0)]
        position["done"] = 0


def train(way, rank, ranks, store, file, steps, micro):
    """Trains so many steps, and is killed. At the end of the training, returns."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    samples, trained, position, history = data(), parts(), {"epoch": 0, "done": 0}, []
    sampler = ragent.GlobalBatchSampler(samples, BATCH, micro, seed=SEED) if way == WAYS[0] else None
    if sampler is not None:
        trained["sampler"] = sampler
    if file.exists():
        saved = torch.load(file)
        position, history = saved["position"], saved["history"]
        for name, part in trained.items():
            part.load_state_dict(saved[name])
    model, begin = DistributedDataParallel(trained["net"]), len(history)

    def save():
        if rank == 0:
            draft = file.with_suffix(".new")
            torch.save({**{name: part.state_dict() for name, part in trained.items()}, "position": position, "history": history}, draft)
            draft.replace(file)

    for micro_batches in steps_of(way, samples, position, sampler, model, ranks):
        own = []
        for (indices, inputs, targets), weight in micro_batches:
            (mse_loss(model(inputs), targets) * weight).backward()
            own += indices.tolist() if weight else []
        trained["optimizer"].step()
        trained["optimizer"].zero_grad()
        trained["schedule"].step()
        of_all = [None] * ranks
        dist.all_gather_object(of_all, own)
        history.append((position["epoch"], sum(of_all, [])))
        if len(history) % SAVE_EVERY == 0:
            save()
        if len(history) - begin == steps:
            dist.barrier()
            os._exit(KILLED)
    save()
    dist.barrier()


def undisturbed():
    """Returns the weights of one process, and how often it has learned from each sample of each epoch."""
    samples, trained, seen = data(), parts(), Counter()
    sampler = DistributedSampler(samples, num_replicas=1, rank=0, seed=SEED)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for indices, inputs, targets in DataLoader(samples, batch_size=BATCH, sampler=sampler):
            mse_loss(trained["net"](inputs), targets).backward()
            trained["optimizer"].step()
            trained["optimizer"].zero_grad()
            trained["schedule"].step()
            seen.update((epoch, index) for index in indices.tolist())
    return list(trained["net"].parameters()), seen


def measure(way, resizes, seed, folder):
    """Trains with resizes. Returns how many there were, and what was saved at the end."""
    chosen, ranks, file = random.Random(seed), 0, Path(folder, "checkpoint")
    for number in range(resizes + 1):
        ranks = chosen.choice([each for each in RANKS if each != ranks])
        steps = chosen.randint(FEWEST, MOST) if number < resizes else -1
        micro, children = chosen.choice(MICRO), []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                try:
                    train(way, rank, ranks, f"{folder}/store{number}", file, steps, micro)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            children.append(child)
        codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
        if codes == {0}:
            break
        if codes != {KILLED}:
            sys.exit(f"error: the ranks of start {number + 1} have ended with {codes}")
    return number, torch.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resizes", type=int, default=50, help="how often the number of ranks changes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the numbers of ranks and of steps (%(default)s)")
    args = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    weights, expected = undisturbed()
    columns = [Column("way", 19), Column("resizes", 7, True), Column("steps", 5, True), Column("skipped", 7, True)]
    table = Table([*columns, Column("repeated", 8, True), Column("batches", 9, True), Column("weights differ by", 17, True)])
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            resizes, saved = measure(way, args.resizes, args.seed, folder)
        seen = Counter((epoch, index) for epoch, indices in saved["history"] for index in indices)
        sizes = [len(indices) for _, indices in saved["history"]]
        difference = max((own - other).abs().max().item() for own, other in zip(saved["net"].values(), weights))
        skipped, repeated = sum((expected - seen).values()), sum((seen - expected).values())
        numbers = map(str, (resizes, len(sizes), skipped, repeated))
        table.add(way, *numbers, f"{min(sizes)} to {max(sizes)}", f"{difference:.1e}")
    print(f"an undisturbed training has {STEPS} steps with {sum(expected.values())} samples, and batches of {BATCH} or {SAMPLES % BATCH}")


if __name__ == "__main__":
    main()
