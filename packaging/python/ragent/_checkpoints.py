"""Saves checkpoints in memory and in a folder, and loads the newest one.

All ranks must do the same at the same step, and none may wait for another one at each step. So they agree, by a reduction over a process group
of their own:

1. About each 0.5 s, each rank starts to reduce five numbers: how many steps it makes in that time, how many between two saves in memory,
   whether its write goes on, whether the next one is due, and whether writes have failed for too long. The result is the highest of each.
2. At the next such step, all ranks read the result, which came long ago. So they decide the same: to save in memory, to write, to fail.

A write has two parts. The training waits while the state is copied on the CPU (`BlockingAsyncStager`). Then a thread writes the copy by
`dcp.save`, over a second process group. Rank 0 renames the folder when all ranks have written their files. Before torch 2.7, the stager does
not copy what is on the CPU already, and the training waits for the whole write.

The last step is written, and not saved in memory. If its write fails, the next start goes on from an earlier step, so it comes to the last
step again. From the last step itself, it would have nothing left to do, and the step would be lost with the memory.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from typing import Any, Callable, Iterable, List, MutableMapping, Optional, Union

from . import checkpoint as memory
from ._saves import kind_to_save, save_failed, saved

# Saves in memory take at most this part of the time, and come at most once in so many seconds.
_SHARE, _SHORTEST = 0.02, 1.0
# All ranks agree about once in so many seconds.
_AGREE = 0.5
# A write that has failed is tried again after a quarter of `every`, and so many seconds at least.
_RETRY = 10.0
# `save` raises an error if nothing could be written for three times `every`, and so many seconds at least.
_TOO_LONG = 3600.0
# What ranks have agreed on before their first reduction: an agreement and a save in memory at each step, and no write.
_NOTHING = [1, 1, 0, 0, 0]


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

        self._every, self._replicated, self._copies_all = every, replicated, COPIES_ALL
        self._group = Group()
        self._state = State(state, per_rank, self._group)
        # The second group is that of the thread that writes.
        self._folder = Folder(folder, keep, Group())
        self._has_memory = all(self._group.from_all(bool(os.environ.get("RAGENT_MEMORY_SOCKET"))))
        # In steps: what all have agreed on, the next step at which they do, and the newest one in memory. -1: nothing was loaded yet.
        self._agree_every, self._interval, self._next_agree, self._in_memory = 1, 1, 0, -1
        self._result: Callable[[], List[int]] = _NOTHING.copy
        # The number of saves in memory, the seconds that the last one took, and the step and the time of the last agreement.
        self._saves, self._cost, self._mark = 0, 0.0, (0, time.monotonic())
        # The thread that writes.
        self._thread: Optional[threading.Thread] = None
        # The newest step that was written or is being written, or -1, the seconds for which the training waited for it, and whether a notice
        # waits for it.
        self._written, self._stopped, self._is_wanted = -1, 0.0, False
        # The time of the next write, and of the last successful one.
        self._due = self._committed = time.monotonic()

    def load(self) -> int:
        """Loads the newest checkpoint of memory and folder into `state`, and returns its step, the same on all ranks. 0: there is none.

        Raises `RuntimeError` if there is nothing in memory, and the folder cannot be read or has lost what it had.
        """
        reader: Any = None if self._replicated else memory.MemoryReader()
        found = memory.load({"all": self._state}) if reader is None else reader.step
        if reader is not None and found is not None:
            self._state.load(reader, found)
        step = -1 if found is None else found
        self._written, age, error = self._group.from_all(self._folder.newest() if self._group.rank == 0 else None)[0]
        if error and step < 0:
            raise RuntimeError(error)
        if self._written >= 0:
            self._due += self._every - age
            # An earlier round of this job has written it.
            self._committed -= age if os.environ.get("RAGENT_SAVED_STEP") else 0
        if self._written > step:
            step = self._written
            self._state.load(self._folder.reader(step), step)
        self._in_memory = max(step, 0)
        self._mark = (self._in_memory, time.monotonic())
        return self._in_memory

    def save(self, step: int, last: bool = False) -> None:
        """Saves if it is time to, and returns when `state` may change again. All ranks call it at each step.

        With `last` it saves in any case, and returns when the step is in the folder, or raises `RuntimeError`. It also raises one if nothing
        could be written for an hour, or for three times `every`.
        """
        if self._in_memory < 0:
            raise RuntimeError("failed to save a checkpoint: nothing was loaded yet; call `load()` once, also for a new job")
        start, kind, may_write = time.monotonic(), None, False
        agrees = last or step >= self._next_agree
        if agrees:
            self._agree_every, self._interval, is_busy, is_due, is_late = self._result()
            # After the last step, nothing may refer to the process group any more.
            self._result = _NOTHING.copy
            if is_late:
                raise RuntimeError(f"failed to write to `{self._folder.path}` for too long: {self._folder.error}")
            kind = kind_to_save(step, every=1)
            if kind is not None:
                self._is_wanted, self._due = True, start
            may_write = not is_busy and (bool(is_due) or kind is not None)
        # Steps after such a notice would be done again.
        ends = last or kind == "end"
        if self._has_memory and not last and step - self._in_memory >= (1 if ends or may_write else self._interval):
            self._save_in_memory(step)
        self._reap(waits=ends)
        if (ends or may_write) and step != self._written:
            self._write(step)
            self._reap(waits=ends)
        if last and self._folder.error:
            raise RuntimeError(f"failed to write step {step} to `{self._folder.path}`: {self._folder.error}")
        if agrees and not last:
            self._agree(step, start)

    def _agree(self, step: int, start: float) -> None:
        """Starts a reduction, which `save` ends at a later step."""
        now = time.monotonic()
        seconds = max((start - self._mark[1]) / max(1, step - self._mark[0]), 1e-6)
        is_late = self._folder.error is not None and now - self._committed > max(3 * self._every, _TOO_LONG)
        steps = [_AGREE / seconds, max(_SHORTEST, self._cost / _SHARE) / seconds]
        flags = [self._thread is not None, self._group.rank == 0 and now >= self._due, is_late]
        self._result = self._group.start_maximum([max(1, round(each)) for each in steps] + [int(flag) for flag in flags])
        self._mark, self._next_agree = (step, now), step + self._agree_every

    def _save_in_memory(self, step: int) -> None:
        start = time.monotonic()
        self._state.compare(self._replicated)
        if self._replicated:
            memory.save(step, {"all": self._state}, replicated=True)
        else:
            self._group.save(self._state.state_dict(), memory.MemoryWriter(step))
        # For the first two saves, the agent makes its buffers.
        self._in_memory, self._saves = step, self._saves + 1
        self._cost = (time.monotonic() - start) * (self._saves > 2)

    def _write(self, step: int) -> None:
        start = time.monotonic()
        self._written, self._due, self._folder.error = step, start + self._every, None
        self._state.compare(self._replicated)
        self._thread = threading.Thread(target=self._folder.write, args=(step, self._state.copy()), daemon=True)
        self._thread.start()
        atexit.register(self._end)
        if not self._copies_all:
            self._thread.join()
        self._stopped = time.monotonic() - start

    def _reap(self, waits: bool) -> None:
        """Reports a write that has ended."""
        if self._thread is None or (self._thread.is_alive() and not waits):
            return
        self._thread.join()
        atexit.unregister(self._end)
        self._thread, step, now = None, self._written, time.monotonic()
        if self._folder.error is None:
            # A notice may have come after the begin of this write.
            self._committed, self._is_wanted = now, self._is_wanted and self._due <= now
            if self._group.rank == 0:
                saved(step, seconds=self._stopped, whole=True)
            return
        # A notice may wait for this checkpoint.
        self._written, self._due = -1, min(self._due, now + max(_RETRY, 0 if self._is_wanted else self._every / 4))
        if self._group.rank == 0:
            save_failed(f"step {step}: {self._folder.error}")
            # Without the step, Python prints it once for each reason.
            warnings.warn(f"failed to write to `{self._folder.path}`: {self._folder.error}; training goes on", RuntimeWarning)

    def _end(self) -> None:
        """Ends the script while a write goes on. Python must not: a thread in the code of torch would abort the process."""
        if hasattr(sys, "last_type"):
            # An exception was printed, and the next round must not wait for the disk.
            sys.stdout.flush()
            os._exit(1)
        self._reap(waits=True)
