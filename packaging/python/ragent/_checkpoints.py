"""Saves checkpoints in memory and in a folder, and loads the newest one.

All ranks must do the same at the same step, and none may wait for another one at each step. So they agree, by a reduction over a process group
of their own:

1. About each 0.5 s, each rank starts to reduce five numbers: how many steps it makes in that time, how many between two saves in memory,
   whether its write goes on, whether the next one is due, and whether writes have failed for too long. The result is the highest of each.
2. At the next such step, all ranks read the result, which came long ago. So they decide the same: to save in memory, to write, to fail.

A write has two parts. The training waits while the state is copied on the CPU (`BlockingAsyncStager`). Then a thread writes the copy by
`dcp.save`, over a second process group. Rank 0 renames the folder when all ranks have written their files. Before torch 2.7, the stager does
not copy what is on the CPU already, and the training waits for the whole write.
"""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Iterable, List, MutableMapping, Optional, Tuple, Union, cast

from . import checkpoint as memory
from ._memory_rng import seed
from ._saves import kind_to_save, save_failed, saved

# Saves in memory take at most this part of the time, and come at most once in so many seconds.
_SHARE, _SHORTEST = 0.02, 1.0
# All ranks agree about once in so many seconds.
_AGREE = 0.5
# A write that has failed is tried again after a quarter of `every`, and so many seconds at least.
_RETRY = 10.0
# `save` raises an error if nothing could be written for three times `every`, and so many seconds at least.
_TOO_LONG = 3600.0


class CheckpointManager:
    """Saves `state` in memory and in `folder`, and loads the newest checkpoint of both.

    ```python
    checkpoints = ragent.CheckpointManager("/lustre/run7", {"model": model, "optimizer": optimizer})
    step = checkpoints.load()
    while step < steps:
        train_step()
        step += 1
        checkpoints.save(step, last=step == steps)
    ```

    `state` has at most one model with its optimizers, and other values, which have a `state_dict` or can be pickled. `every` is the number of
    seconds between two checkpoints in the folder, and `keep` how many of them are kept.

    With `replicated`, all ranks have the same state, as with DDP, and a node has it in memory once. `per_rank` names values that differ from
    rank to rank, such as the position in the data. Tensors that are divided among the ranks are DTensors, as with FSDP2.
    """

    def __init__(
        self, folder: Union[str, "os.PathLike[str]"], state: MutableMapping[str, Any], *, every: float = 600.0, keep: int = 3,
        replicated: bool = False, per_rank: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """All ranks make it at the same place of the script, after `init_process_group`."""
        if every <= 0 or keep < 1:
            raise ValueError(f"failed to make a CheckpointManager: every={every} and keep={keep} must be above 0; leave them out")
        # This module imports torch.
        from ._checkpoint_parts import COPIES_ALL, Folder, Group, State

        self._dcp: Any = import_module("torch.distributed.checkpoint")
        self._has_thread = COPIES_ALL
        self._every, self._replicated = every, replicated
        # Of this thread, and of the thread that writes.
        self._group, self._writers = Group(), Group()
        self._is_first = self._group.rank == 0
        self._state = State(state, per_rank, self._group)
        # A name with this is unique.
        self._folder = Folder(Path(folder), keep, self._group.from_all(uuid.uuid4().hex[:12])[0])
        self._has_memory = all(self._group.from_all(bool(os.environ.get("RAGENT_MEMORY_SOCKET"))))
        # In steps: what all have agreed on, the next step at which they do, and the newest one in memory.
        self._agree_every, self._interval, self._next_agree = 1, 1, 0
        self._in_memory: Optional[int] = None
        self._result: Optional[Callable[[], List[int]]] = None
        # The number of saves in memory, the seconds that the last one took, and the step and the time of the last agreement.
        self._saves, self._cost, self._mark = 0, 0.0, (0, time.monotonic())
        # The thread that writes, its step, the reason if it has failed, and the seconds for which the training waited for it.
        self._thread: Optional[threading.Thread] = None
        self._written: Optional[int] = None
        self._error: Optional[str] = None
        self._stopped, self._is_wanted, self._has_warned = 0.0, False, False
        # The time of the next write, and of the last successful one.
        self._due = self._committed = time.monotonic()

    def load(self) -> int:
        """Loads the newest checkpoint of memory and folder into `state`, and returns its step, the same on all ranks. 0: there is none.

        Raises `RuntimeError` if there is nothing in memory, and the folder cannot be read or has lost what it had.
        """
        step = self._load_from_memory()
        on_disk, error = self._group.from_all(self._look() if self._is_first else None)[0]
        if error and step is None:
            raise RuntimeError(error)
        if on_disk is not None and (step is None or on_disk > step):
            step = self._written = on_disk
            path = self._folder.wait_for(step)
            seed(step)
            self._state.load(self._dcp.FileSystemReader(path))
        self._in_memory = step or 0
        self._mark = (self._in_memory, time.monotonic())
        return self._in_memory

    def save(self, step: int, last: bool = False) -> None:
        """Saves if it is time to, and returns when `state` may change again. All ranks call it at each step.

        With `last` it saves in any case, and returns when the step is in the folder, or raises `RuntimeError`. It also raises one if nothing
        could be written for an hour, or for three times `every`.
        """
        if self._in_memory is None:
            raise RuntimeError("failed to save a checkpoint: nothing was loaded yet; call `load()` once, also for a new job")
        start, kind, may_write = time.monotonic(), None, False
        agrees = last or step >= self._next_agree
        if agrees:
            is_busy, is_due = self._agreed()
            kind = kind_to_save(step, every=1)
            self._is_wanted |= kind is not None
            may_write = not is_busy and (is_due or self._is_wanted)
        # Steps after such a notice would be done again.
        ends = last or kind == "end"
        if step > self._in_memory and (ends or may_write or step - self._in_memory >= self._interval):
            self._save_in_memory(step)
        self._reap(waits=ends)
        if (ends or may_write) and step != self._written:
            self._write(step)
            self._reap(waits=ends)
        if last and self._error:
            raise RuntimeError(f"failed to write step {step} to `{self._folder.path}`: {self._error}")
        # After the last step, nothing may refer to the process group any more.
        if agrees and not last:
            self._agree(step, start)

    def _load_from_memory(self) -> Optional[int]:
        if self._replicated:
            # It seeds the generators, too.
            return memory.load({"all": self._state})
        reader: Any = memory.MemoryReader()
        if reader.step is not None:
            # First: the state may have generators of its own.
            seed(reader.step)
            self._state.load(reader)
        return cast(Optional[int], reader.step)

    def _look(self) -> Tuple[Optional[int], Optional[str]]:
        """Returns the newest step of the folder, or an error if the job must not start from step 0. Takes the folder for this round."""
        step, age, error = self._folder.newest()
        if self._folder.path.is_dir():
            self._folder.take()
        if step is not None:
            self._due += self._every - age
            # An earlier round of this job has written it.
            self._committed -= age if os.environ.get("RAGENT_SAVED_STEP") else 0
        return step, error

    def _agree(self, step: int, start: float) -> None:
        """Starts a reduction, which `_agreed` ends at a later step."""
        now = time.monotonic()
        seconds = max((start - self._mark[1]) / max(1, step - self._mark[0]), 1e-6)
        is_late = self._error is not None and now - self._committed > max(3 * self._every, _TOO_LONG)
        steps = [_AGREE / seconds, max(_SHORTEST, self._cost / _SHARE) / seconds]
        flags = [self._thread is not None, self._is_first and now >= self._due, is_late]
        self._result = self._group.start_maximum([math.ceil(each) for each in steps] + [int(flag) for flag in flags])
        self._mark, self._next_agree = (step, now), step + self._agree_every

    def _agreed(self) -> Tuple[bool, bool]:
        """Returns whether a write goes on, and whether the next one is due."""
        result, self._result = self._result, None
        if result is None:
            return False, False
        self._agree_every, self._interval, is_busy, is_due, is_late = result()
        if is_late:
            raise RuntimeError(f"failed to write to `{self._folder.path}` for too long: {self._error}")
        return bool(is_busy), bool(is_due)

    def _save_in_memory(self, step: int) -> None:
        self._in_memory = step
        if not self._has_memory:
            return
        start = time.monotonic()
        self._state.compare(self._replicated)
        if self._replicated:
            memory.save(step, {"all": self._state}, replicated=True)
        else:
            found, writer = self._state.state_dict(), memory.MemoryWriter(step)
            self._dcp.save(found, storage_writer=writer, process_group=self._group.process_group)
        # For the first two saves, the agent makes its buffers.
        self._saves += 1
        self._cost = (time.monotonic() - start) * (self._saves > 2)

    def _write(self, step: int) -> None:
        start = time.monotonic()
        self._is_wanted, self._written, self._due, self._error = False, step, start + self._every, None
        self._state.compare(self._replicated)
        found = self._state.state_dict()
        if self._has_thread:
            found = import_module("torch.distributed.checkpoint.staging").BlockingAsyncStager().stage(found)
            # At the end of the process, nothing waits for it.
            self._thread = threading.Thread(target=self._write_copy, args=(found, step), daemon=True)
            self._thread.start()
        else:
            self._write_copy(found, step)
        self._stopped = time.monotonic() - start
        if self._thread is None:
            self._report()

    def _write_copy(self, found: Any, step: int) -> None:
        """Writes the state, and lets rank 0 commit it. Never raises an error, since no rank may wait for another one that has failed."""
        failed = None
        try:
            writer = self._dcp.FileSystemWriter(self._folder.draft(step), thread_count=1)
            self._dcp.save(found, storage_writer=writer, process_group=self._writers.process_group)
            self._folder.sync_parts(step, self._writers.rank)
        except (Exception, self._dcp.CheckpointException) as error:
            failed = _reason(error)
        try:
            failed = next(filter(None, self._writers.from_all(failed)), None)
            self._error = self._writers.from_all(self._commit(step, failed) if self._is_first else None)[0]
        except Exception as error:
            self._error = _reason(error)

    def _commit(self, step: int, failed: Optional[str]) -> Optional[str]:
        """Returns the reason if it has failed."""
        if failed is None:
            try:
                self._folder.commit(step)
                return None
            except Exception as error:
                failed = _reason(error)
        return f"{failed} ({self._folder.drop(step)} MiB are free)"

    def _reap(self, waits: bool) -> None:
        """Reports a write that has ended."""
        if self._thread is not None and (waits or not self._thread.is_alive()):
            self._thread.join()
            self._thread = None
            self._report()

    def _report(self) -> None:
        step, now = self._written, time.monotonic()
        if self._error is None:
            self._committed, self._has_warned = now, False
            if self._is_first and step is not None:
                saved(step, seconds=self._stopped, whole=True)
            return
        self._written, self._due = None, min(self._due, now + max(_RETRY, self._every / 4))
        if self._is_first:
            save_failed(f"step {step}: {self._error}")
        if self._is_first and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"failed to write step {step} to `{self._folder.path}`: {self._error}; training goes on", RuntimeWarning)


def _reason(error: BaseException) -> str:
    for rank, (cause, _) in getattr(error, "failures", {}).items():
        return f"rank {rank}: {type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {error}"
