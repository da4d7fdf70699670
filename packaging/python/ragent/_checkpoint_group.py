"""Exchanges values of all ranks by gloo, which never waits for a GPU."""

from __future__ import annotations

import os
from datetime import timedelta
from importlib import import_module
from typing import Any, Callable, List

torch: Any = import_module("torch")
_distributed: Any = import_module("torch.distributed")

# Collectives of a write wait so long for the slowest rank, whose disk may be slow.
_PATIENCE = timedelta(hours=2)


class Group:
    """All ranks of torch's default process group. Without one, this process alone."""

    def __init__(self) -> None:
        """All ranks make their groups in the same order."""
        self.process_group: Any = None
        self.rank, self.ranks = 0, 1
        if _distributed.is_available() and _distributed.is_initialized():
            self.process_group = _distributed.new_group(backend="gloo", timeout=_PATIENCE)
            self.rank, self.ranks = _distributed.get_rank(), _distributed.get_world_size()
        elif os.environ.get("WORLD_SIZE", "1") != "1":
            raise RuntimeError("failed to make a CheckpointManager: there is no process group; call `init_process_group` before")

    def from_first(self, value: Any) -> Any:
        """Returns the value of rank 0."""
        values = [value]
        if self.process_group is not None:
            _distributed.broadcast_object_list(values, src=0, group=self.process_group)
        return values[0]

    def from_all(self, value: Any) -> List[Any]:
        """Returns the values of all ranks."""
        values = [value] * self.ranks
        if self.process_group is not None:
            _distributed.all_gather_object(values, value, group=self.process_group)
        return values

    def start_maximum(self, values: List[int]) -> Callable[[], List[int]]:
        """Starts to find the highest of each number. The function waits for the result."""
        tensor, work = torch.tensor(values, dtype=torch.int64), None
        if self.process_group is not None:
            operator = _distributed.ReduceOp.MAX
            work = _distributed.all_reduce(tensor, op=operator, group=self.process_group, async_op=True)

        def result() -> List[int]:
            if work is not None:
                work.wait()
            found: List[int] = tensor.tolist()
            return found

        return result
