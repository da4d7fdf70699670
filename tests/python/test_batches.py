"""`ragent.GlobalBatchSampler`: the batches, their weights and the position, for all ranks of a step in this process."""

import collections
import random

import pytest
from support import BEGIN_OF_RANKS, END_OF_RANK, free_port, needs

needs("torch")

import torch
from torch.utils.data import DataLoader, DistributedSampler

from ragent import GlobalBatchSampler

SAMPLES, BATCH = 100, 24


def of_ranks(ranks, micro=None, state=None, samples=SAMPLES, batch=BATCH, **options):
    """Returns the samplers of all ranks."""
    samplers = [GlobalBatchSampler(range(samples), batch, micro, num_replicas=ranks, rank=rank, **options) for rank in range(ranks)]
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(state)
    return samplers


def loader_of(sampler, **options):
    return DataLoader(range(sampler._samples), batch_sampler=sampler, **options)


def train(samplers, steps=None):
    """Makes steps on all ranks together. Yields the micro-batches of each step with their weights, rank by rank."""
    runs = [sampler.steps(loader_of(sampler)) for sampler in samplers]
    for _ in range(steps or SAMPLES):
        begun = [next(run, None) for run in runs]
        if None in begun:
            assert begun == [None] * len(runs)
            return
        found = [list(step) for step in begun]
        assert len({len(pairs) for pairs in found}) == 1, "a rank would wait for another one"
        yield [pair for pairs in found for pair in pairs]


def indices(pairs):
    return [index for batch, weight in pairs if weight for index in batch.tolist()]


def order_of(epoch=0, seed=0, samples=SAMPLES):
    """Returns the order of torch's own sampler with one rank."""
    sampler = DistributedSampler(range(samples), num_replicas=1, rank=0, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("micro", [1, 2, 5, 24])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 24, 30])
def test_same_batches(ranks, micro, drop_last):
    """Any number of ranks has the batches of one rank, in small enough pieces, and the weights make the mean over the batch."""
    order = order_of(seed=3)
    steps = list(train(of_ranks(ranks, micro, seed=3, drop_last=drop_last)))
    assert [indices(pairs) for pairs in steps] == [order[at : at + BATCH] for at in range(0, 96 if drop_last else SAMPLES, BATCH)]
    for pairs in steps:
        assert max(len(batch) for batch, _ in pairs) <= micro
        # A rank without a sample of its own computes one of this batch.
        assert {index for batch, _ in pairs for index in batch.tolist()} == set(indices(pairs))
        mean = sum(batch.double().square().mean() * weight for batch, weight in pairs) / ranks
        assert mean.item() == pytest.approx(torch.tensor(indices(pairs)).double().square().mean().item(), rel=1e-14)


def test_pieces():
    """Without a micro-batch size, a rank computes its share at once. The sizes of pieces differ by one at most."""
    for pairs in train(of_ranks(5)):
        assert len(pairs) == 5 and len({len(batch) for batch, weight in pairs if weight}) <= 2


def test_same_as_distributed_sampler():
    """A script may change over in the middle of its training: with as many ranks, `DistributedSampler` has the same batches."""
    theirs = [DistributedSampler(range(96), num_replicas=4, rank=rank, seed=5) for rank in range(4)]
    expected = [sorted(index for each in theirs for index in list(each)[at : at + 6]) for at in range(0, 24, 6)]
    assert [sorted(indices(pairs)) for pairs in train(of_ranks(3, samples=96, seed=5))] == expected


def test_epochs():
    """Each epoch has its own order, and the state brings its seed."""
    state = {"epoch": 4, "position": 24, "seed": 3, "samples": SAMPLES}
    assert sum(map(indices, train(of_ranks(3, state=state))), []) == order_of(4, seed=3)[24:]
    assert list(of_ranks(1, shuffle=False)[0])[0] == list(range(24))


@pytest.mark.parametrize("workers", [0, 2])
def test_position(workers):
    """What the loader has read ahead is not done, and neither is a step that was begun."""
    (sampler,) = of_ranks(1, micro=5)
    steps = sampler.steps(loader_of(sampler, num_workers=workers, prefetch_factor=4 if workers else None))
    assert len(list(next(steps))) == 5
    assert sampler.state_dict() == {"epoch": 0, "position": 24, "seed": 0, "samples": SAMPLES}
    next(next(steps))
    assert (sampler.epoch, sampler.position) == (0, 24)


def test_left_early():
    """A step that the script leaves early ends when the next one begins."""
    (sampler,) = of_ranks(1, micro=5)
    firsts = [next(step)[0][0].item() for step in sampler.steps(loader_of(sampler))]
    assert firsts == order_of()[::BATCH] and (sampler.epoch, sampler.position) == (1, 0)


def test_resizes():
    """With any numbers of ranks, each sample is trained once in an epoch."""
    chosen, state, seen = random.Random(1), None, collections.Counter()
    while state is None or state["epoch"] < 20:
        samplers = of_ranks(chosen.randint(1, 9), chosen.randint(1, 24), state, seed=chosen.randint(0, 9))
        epoch = samplers[0].epoch
        for pairs in train(samplers, chosen.randint(1, 4)):
            seen.update((epoch, index) for index in indices(pairs))
        (state,) = [dict(each) for each in {tuple(sampler.state_dict().items()) for sampler in samplers}]
    assert seen == collections.Counter((epoch, index) for epoch in range(20) for index in range(SAMPLES))


def test_other_batch_size():
    """Another batch size goes on from the same sample."""
    state = {"epoch": 2, "position": 48, "seed": 0, "samples": SAMPLES}
    assert [len(indices(pairs)) for pairs in train(of_ranks(2, state=state, batch=40))] == [40, 12]
    # Nothing of this epoch is left.
    (sampler,) = of_ranks(1, state=state, batch=60, drop_last=True)
    assert (sampler.epoch, sampler.position) == (3, 0)


@pytest.mark.parametrize("ranks, micro", [(1, None), (3, 5), (5, 1)])
def test_length(ranks, micro):
    """The length is that of all micro-batches of a rank. The number of steps does not depend on the ranks."""
    sampler = of_ranks(ranks, micro)[0]
    assert len(list(sampler)) == len(sampler) == len(loader_of(sampler)) and sampler.steps_per_epoch == 5


def test_no_sync():
    """Only the last micro-batch of a step synchronizes gradients."""
    events = []

    class Model:
        def no_sync(self):
            events.append("off")
            return self

        def __enter__(self):
            pass

        def __exit__(self, *_):
            events.append("on")

    (sampler,) = of_ranks(1, micro=10)
    for _ in next(sampler.steps(loader_of(sampler), Model())):
        events.append("batch")
    assert events == ["off", "batch", "on", "off", "batch", "on", "batch"]


def test_own_order():
    """A script may give another order, with one index for each sample."""

    class Backwards(GlobalBatchSampler):
        def order(self, epoch):
            return range(49, short - 1, -1)

    short = 0
    assert next(iter(Backwards(range(50), 20))) == list(range(49, 29, -1))
    short = 1
    with pytest.raises(ValueError, match="49 indices for 50 samples"):
        next(iter(Backwards(range(50), 20)))


def test_wrong_calls(monkeypatch):
    """A wrong call has an error that says what to do."""
    for options, text in [
        ({"micro": 30}, "micro_batch_size=30 is not from 1 to batch_size=24"),
        ({"micro": 0}, "micro_batch_size=0"),
        ({"samples": 10, "drop_last": True}, "10 samples, too few"),
        ({"samples": 0}, "0 samples, too few"),
    ]:
        with pytest.raises(ValueError, match=text):
            of_ranks(1, **options)
    with pytest.raises(ValueError, match="rank=3 is not from 0"):
        GlobalBatchSampler(range(100), 24, num_replicas=3, rank=3)
    (sampler,) = of_ranks(1)
    with pytest.raises(ValueError, match="another batch sampler"):
        next(sampler.steps(DataLoader(range(100), batch_size=24)))
    with pytest.raises(ValueError, match="100 samples now"):
        sampler.load_state_dict({"epoch": 1, "position": 24, "seed": 0, "samples": 90})
    sampler.load_state_dict({"epoch": 1, "position": 0, "seed": 0, "samples": 90})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="call `init_process_group` before"):
        GlobalBatchSampler(range(100), 24)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert GlobalBatchSampler(range(100), 24).num_replicas == 1


TRAINING = """
import pathlib
import ragent
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
folder = pathlib.Path("checkpoints")
folder.mkdir(exist_ok=True)
torch.manual_seed(0)
data = [(torch.randn(4), torch.randn(1)) for _ in range(100)]
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
"""

OF_RANKS = """
sampler = ragent.GlobalBatchSampler(data, 24, 5 + ranks, seed=7)
loader = DataLoader(data, batch_sampler=sampler)
checkpoints = ragent.CheckpointManager(folder, {"model": net, "optimizer": optimizer, "sampler": sampler}, every=1e6, replicated=True)
step = checkpoints.load()
model, end = DistributedDataParallel(net), step + 4
while step < end:
    for micro_batches in sampler.steps(loader, model):
        for (x, y), weight in micro_batches:
            (torch.nn.functional.mse_loss(model(x), y) * weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        checkpoints.save(step, last=step == end)
        if step == end:
            break
expected = reference(end)
assert max((own - other).abs().max() for own, other in zip(net.parameters(), expected)) < 1e-12
assert (sampler.epoch, sampler.position) == divmod(step, 5)[:1] + (step % 5 * 24,)
"""

REFERENCE = """
def reference(steps):
    # One process, without the sampler.
    from torch.utils.data import DistributedSampler
    net_copy = copy.deepcopy(initial)
    optimizer = torch.optim.AdamW(net_copy.parameters(), lr=0.01)
    sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=7)
    done = 0
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=24, sampler=sampler):
            torch.nn.functional.mse_loss(net_copy(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == steps:
                return list(net_copy.parameters())
initial = copy.deepcopy(net)
"""


@pytest.fixture
def run(sandbox):
    def run(ranks, text):
        script = sandbox.write("main.py", BEGIN_OF_RANKS + "del os.environ['RAGENT_MEMORY_SOCKET']\n" + TRAINING + text + END_OF_RANK)
        names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
        assert sandbox.run(script, *["none"] * ranks, env=names).succeeds().stdout.count("done") == ranks

    return run


def test_same_training(run):
    """Two, three and two ranks with `CheckpointManager` train the weights of one process."""
    for ranks in (2, 3, 2):
        run(ranks, REFERENCE + OF_RANKS)


def test_different_ranks(run):
    """If ranks would divide different batches, all of them have the error."""
    run(
        2,
        """
sampler = ragent.GlobalBatchSampler(data, 24, seed=rank)
try:
    next(sampler.steps(DataLoader(data, batch_sampler=sampler)))
except ValueError as error:
    assert "rank 0 has {" in str(error) and "rank 1 has {" in str(error) and "'seed': 1" in str(error), error
else:
    raise SystemExit("no error")
""",
    )
