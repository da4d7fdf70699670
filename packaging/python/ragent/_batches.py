"""Divides the batches of a training among its ranks, so that it stays the same training with any number of ranks.

```python
sampler = ragent.GlobalBatchSampler(data, batch_size=256, micro_batch_size=32, seed=7)
loader = DataLoader(data, batch_sampler=sampler, num_workers=4)
for epoch in range(sampler.epoch, epochs):
    for micro_batches in sampler.steps(loader, model):
        for (inputs, targets), weight in micro_batches:
            (loss_of(model(inputs), targets) * weight).backward()
        optimizer.step()
        optimizer.zero_grad()
```

No rank has a position of its own. All of them know how many samples of the epoch are done, and each derives its share:

1. The order of an epoch follows from the seed and the epoch. It is that of `DistributedSampler` with one rank.
2. A step takes the next `batch_size` samples of this order.
3. They are cut into pieces whose sizes differ by one at most. Each rank gets the same number of pieces, so no rank waits for one that has
   no more pieces. A piece is a micro-batch.
4. A piece has a weight, by which the mean over the ranks becomes the mean over the batch.
5. The samples count as done when the script has used up all pieces of its rank. What the loader has read ahead does not count.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from importlib import import_module
from typing import Any, Dict, Iterator, List, Optional, Sized, Tuple


class GlobalBatchSampler:
    """A `batch_sampler` for `DataLoader`. A step has `batch_size` samples on all ranks together, however many ranks there are.

    A rank computes at most `micro_batch_size` samples at once. Without it, each rank computes its share at once. The other arguments are
    those of `DistributedSampler`. With `drop_last`, samples that do not fill a last batch are left out. Otherwise the last batch is smaller.

    `epoch` and `position` are what is done: the number of epochs, and of samples in this one. For another order than a shuffle, override
    `order`.
    """

    def __init__(
        self, dataset: Sized, batch_size: int, micro_batch_size: Optional[int] = None, *, num_replicas: Optional[int] = None,
        rank: Optional[int] = None, shuffle: bool = True, seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        """Without `num_replicas` and `rank`, call it after `init_process_group`."""
        self._skips_compare = num_replicas is not None or rank is not None
        if num_replicas is None or rank is None:
            found = _ranks()
            num_replicas, rank = found[0] if num_replicas is None else num_replicas, found[1] if rank is None else rank
        self.batch_size, self.micro_batch_size = batch_size, batch_size if micro_batch_size is None else micro_batch_size
        self.num_replicas, self.rank = num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = self.position = 0
        self._samples = len(dataset)
        wrong = None
        if not 1 <= self.micro_batch_size <= batch_size:
            wrong = f"micro_batch_size={self.micro_batch_size} is not from 1 to batch_size={batch_size}"
        elif not 0 <= rank < num_replicas:
            wrong = f"rank={rank} is not from 0 to num_replicas={num_replicas} - 1"
        elif not self._starts(0):
            wrong = f"the dataset has {self._samples} samples, too few for batch_size={batch_size}"
        if wrong is not None:
            raise ValueError(f"failed to make a GlobalBatchSampler: {wrong}; give it a number that fits")

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of a whole epoch, for schedules. Unlike `len(loader)`, it does not depend on the number of ranks."""
        return len(self._starts(0))

    def order(self, epoch: int) -> Any:
        """Returns the index of each sample in the order of this epoch, the same on all ranks: a tensor or a sequence."""
        torch: Any = import_module("torch")
        if not self.shuffle:
            return torch.arange(self._samples)
        return torch.randperm(self._samples, generator=torch.Generator().manual_seed(self.seed + epoch))

    def steps(self, loader: Any, model: Any = None) -> Iterator[Iterator[Tuple[Any, float]]]:
        """Yields the steps that are left of this epoch. A step is an iterator of the micro-batches of this rank, as `(batch, weight)`.

        Multiply the loss by `weight`, if it is the mean over the micro-batch, and gradients are the mean over the ranks, as with DDP and FSDP.
        The weight is 0 for a sample of another rank, which this rank only computes because all ranks must take part.

        With a `model` that has `no_sync`, such as DDP, gradients are synchronized once in a step. A step counts as done when its micro-batches
        are used up. So save after `optimizer.step()`.

        The first call compares the numbers of all ranks, unless `num_replicas` or `rank` were given. All ranks call it at the same place.
        """
        if getattr(loader, "batch_sampler", self) is not self:
            raise ValueError(
                "failed to divide the batches: the loader has another batch sampler, which would divide them again; make it by "
                "`DataLoader(data, batch_sampler=sampler)`, and do not wrap it"
            )
        self._compare()
        batches = iter(loader)
        for start in self._starts(self.position):
            step = self._step(batches, start, model)
            yield step
            # The script may have left the step early.
            for _ in step:
                pass

    def state_dict(self) -> Dict[str, int]:
        """Returns four numbers, the same on all ranks."""
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, "samples": self._samples}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Goes on from there, with the seed of the state. The dataset may have another length at the beginning of an epoch only."""
        if state["position"] and state["samples"] != self._samples:
            place = f"sample {state['position']} of {state['samples']} in epoch {state['epoch']}"
            raise ValueError(f"failed to go on from {place}: the dataset has {self._samples} samples now; give it the same ones")
        self.seed = state["seed"]
        self._go_to(state["epoch"], state["position"])

    def __iter__(self) -> Iterator[List[int]]:
        """Yields the indices of each micro-batch of this rank, from the position to the end of the epoch."""
        order = import_module("torch").as_tensor(self.order(self.epoch))
        if len(order) != self._samples:
            raise ValueError(f"failed to divide the batches: `order` has {len(order)} indices for {self._samples} samples; return one for each")
        for start in self._starts(self.position):
            for begin, end in self._pieces(start):
                yield order[begin : max(end, begin + 1)].tolist()

    def __len__(self) -> int:
        """Returns the number of micro-batches of this rank in a whole epoch."""
        return sum(len(self._pieces(start)) for start in self._starts(0))

    def _starts(self, position: int) -> range:
        """Returns where the batches that are left of an epoch begin."""
        return range(position, self._samples - (self.batch_size - 1 if self.drop_last else 0), self.batch_size)

    def _pieces(self, start: int) -> List[Tuple[int, int]]:
        """Returns where the pieces of this rank begin and end, of the batch that begins at `start`."""
        size = min(self.batch_size, self._samples - start)
        own = -(-size // (self.num_replicas * self.micro_batch_size))
        ends = [start + size * number // (own * self.num_replicas) for number in range(self.rank * own, (self.rank + 1) * own + 1)]
        return list(zip(ends, ends[1:]))

    def _step(self, batches: Iterator[Any], start: int, model: Any) -> Iterator[Tuple[Any, float]]:
        pieces, size = self._pieces(start), min(self.batch_size, self._samples - start)
        for left, (begin, end) in zip(range(len(pieces) - 1, -1, -1), pieces):
            batch = next(batches)
            with model.no_sync() if left and hasattr(model, "no_sync") else nullcontext():
                yield batch, (end - begin) * self.num_replicas / size
        self._go_to(self.epoch, start + size)

    def _go_to(self, epoch: int, position: int) -> None:
        self.epoch, self.position = (epoch, position) if self._starts(position) else (epoch + 1, 0)

    def _compare(self) -> None:
        """Raises `ValueError` on all ranks if they would divide different batches."""
        distributed: Any = import_module("torch.distributed")
        if self._skips_compare or not (distributed.is_available() and distributed.is_initialized()):
            return
        self._skips_compare = True
        numbers = {"batch_size": self.batch_size, "micro_batch_size": self.micro_batch_size, "drop_last": self.drop_last, **self.state_dict()}
        found: List[Any] = [None] * self.num_replicas
        distributed.all_gather_object(found, numbers)
        for rank, other in enumerate(found):
            if other != found[0]:
                raise ValueError(
                    f"failed to divide the batches: rank 0 has {found[0]}, and rank {rank} has {other}; give the sampler the same on all ranks"
                )


def _ranks() -> Tuple[int, int]:
    """Returns the number of ranks, and this one."""
    distributed: Any = import_module("torch.distributed")
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise RuntimeError("failed to make a GlobalBatchSampler: there is no process group; call `init_process_group` before")
    return 1, 0
