"""Asks all ranks for a checkpoint at the same step, and reports checkpoints that are on storage.

Nodes learn of a notice at different times, and ranks that save at different steps have no checkpoint. So `should_save` agrees
on it, by a reduction over torch's default process group:

1. At a multiple of `every` steps, each rank starts a reduction of the number of its node's newest notice. The result is the
   highest number of all ranks.
2. At the next multiple, each rank reads the result. The reduction has ended long ago, so no rank waits for it. A device is
   not synchronized either: the result is copied on a stream of its own.
3. A number that no rank has answered yet is answered with True, on all ranks, as they have read the same. Then the next
   reduction starts.

The ranks reduce two numbers. The first contains the kind of the notice as well, so that all ranks know the same kind. It is -1 on
a rank without an agent. If it is -1 on all, they start no further reduction. The second is the newest notice that a rank has
answered, since in a new process group not all ranks may have answered the same ones.
"""

from __future__ import annotations

import os
import sys
import weakref
from contextlib import suppress
from typing import Any, List, NoReturn, Optional, SupportsIndex, Tuple

from . import _notices, _steps

# The kinds of notices, the weakest one first. A kind that this module does not know counts as the first one.
_KINDS = ("save", "members", "leave", "end")
# A reduced value is the number of the notice times this, plus the place of its kind.
_FACTOR = 8
# After a checkpoint for these, the callbacks for frameworks end the script: the agent ends the round in any case.
ENDING = ("leave", "end")
_NO_AGENT = -1

_get = os.environ.get


class _Agreement:
    """The reductions over one process group."""

    def __init__(self, group: Any) -> None:
        # After `destroy_process_group`, nothing here must keep the group alive.
        self.group = weakref.ref(group)
        self._step: Optional[int] = None
        # The open reduction, and what is reduced: one tensor for all of them. If a thread of gloo freed a tensor while the process
        # group is destroyed, the script could hang (torch 2.2).
        self._work: Any = None
        self._values: Any = None
        # The stream and the memory for results of a CUDA device.
        self._stream: Any = None
        self._copy: Any = None
        self._has_no_agents = False

    def turn(self, step: int) -> Optional[Tuple[int, str]]:
        """Ends a reduction and starts the next one. Returns a notice that no rank has answered: its number and kind."""
        # A script may ask several times at a step.
        if self._has_no_agents or step == self._step:
            return None
        unanswered = None
        if self._work is not None:
            newest, answered = self._result()
            if newest == _NO_AGENT:
                self._has_no_agents = True
                return None
            number, kind = divmod(newest, _FACTOR)
            if number > answered:
                unanswered = (number, _KINDS[kind])
            _state.agreed = max(number, answered)
        self._step = step
        self._start()
        return unanswered

    def wait(self) -> None:
        """Waits for all ranks."""
        self._start()
        self._result()

    def _start(self) -> None:
        torch: Any = sys.modules["torch"]
        if self._values is None:
            # Otherwise it could be filled in this mode only.
            with torch.inference_mode(False):
                self._values = torch.zeros(2, dtype=torch.int64, device=_device_of(self.group(), torch))
        # Filling waits for no device, unlike copying a tensor to it.
        self._values[0].fill_(_own_value())
        self._values[1].fill_(_state.agreed)
        operator = torch.distributed.ReduceOp.MAX
        self._work = torch.distributed.all_reduce(self._values, op=operator, async_op=True)

    def _result(self) -> List[int]:
        """Returns the reduced values. Raises the error of torch if the reduction has failed."""
        torch: Any = sys.modules["torch"]
        values, work, self._work = self._values, self._work, None
        if values.device.type != "cuda":
            work.wait()
            result: List[int] = values.tolist()
            return result
        # On the current stream, the copy would wait for all steps that the device has not computed yet.
        if self._stream is None:
            self._stream = torch.cuda.Stream(values.device)
            self._copy = torch.empty(2, dtype=torch.int64, device="cpu", pin_memory=True)
        copied = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            work.wait()
            self._copy.copy_(values, non_blocking=True)
            copied.record()
        copied.synchronize()
        result = self._copy.tolist()
        return result


def _device_of(group: Any, torch: Any) -> Any:
    """Returns a device whose tensors the process group can reduce: the CPU if possible."""
    # Such as `cuda:nccl`, or `cpu:gloo,cuda:nccl`.
    backends = str(torch.distributed.get_backend_config())
    kinds = [backend.partition(":")[0] for backend in backends.split(",") if ":" in backend]
    if not kinds or "cpu" in kinds:
        return torch.device("cpu")
    # That of `init_process_group(device_id=…)`.
    bound = getattr(group, "bound_device_id", None)
    return bound if bound is not None and bound.type == kinds[0] else torch.device(kinds[0])


class _State:
    """The answers of this process."""

    def __init__(self) -> None:
        self.agreement: Optional[_Agreement] = None
        self.end: Optional[_Agreement] = None
        # The newest notice that was answered with all ranks, and the newest one without torch.distributed.
        self.agreed = 0
        self.alone = 0
        self.has_asked = False
        # The newest notice with the answer True, and the step of this answer.
        self.answer: Optional[Tuple[int, int]] = None


_state = _State()


def should_save(step: SupportsIndex, *, every: SupportsIndex = 10) -> bool:
    """Returns True if all ranks are to save a checkpoint at this step, because of a notice. Each notice gives it once.

    Every rank of torch's default process group calls this with the same steps, at the same place of its loop. A rank that does
    not makes the others wait, as with any collective. Ranks agree at multiples of `every` steps. At other steps, the result is
    False. So a notice is answered after at most `2 * every` steps. With steps above a second, pass `every=1`.

    Without torch.distributed, the answer is this node's own, at any step. An error of the reduction is raised as torch raises it.
    """
    return kind_to_save(step, every=every) is not None


def kind_to_save(step: SupportsIndex, *, every: SupportsIndex = 10) -> Optional[str]:
    """Returns the kind of the notice in place of True, the same on all ranks, and `None` in place of False."""
    number = _steps.whole(step, "ask for a checkpoint: step", "ragent.should_save(int(step))")
    interval = _steps.whole(every, "ask for a checkpoint: every", "ragent.should_save(step, every=10)", least=1)
    _state.has_asked = True
    group = _default_group()
    if group is None:
        newest = _notices.current()
        if newest is None or newest.notice <= _state.alone:
            return None
        _state.alone = newest.notice
        _state.answer = (newest.notice, number)
        return newest.kind
    if number % interval:
        return None
    agreement = _state.agreement
    if agreement is None or agreement.group() is not group:
        # The reduction of a group that was destroyed has no result.
        agreement = _state.agreement = _Agreement(group)
    unanswered = agreement.turn(number)
    if unanswered is None:
        return None
    _state.answer = (unanswered[0], number)
    return unanswered[1]


def _default_group() -> Any:
    """Returns torch's default process group, or `None`. Does not import torch."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.group.WORLD


def _own_value() -> int:
    if not _get("RAGENT_NOTICE_FILE"):
        return _NO_AGENT
    newest = _notices.current()
    if newest is None:
        return 0
    return newest.notice * _FACTOR + (_KINDS.index(newest.kind) if newest.kind in _KINDS else 0)


def end_together() -> NoReturn:
    """Ends the script with exit code 0 when all ranks have come here.

    A rank that ends earlier could break the checkpoint of another one.
    """
    group = _default_group()
    if group is not None:
        _state.end = _Agreement(group)
        _state.end.wait()
    raise SystemExit(0)


def saved(step: SupportsIndex, *, seconds: Optional[float] = None, whole: bool = False) -> None:
    """Reports that the checkpoint of a step is on storage: this rank's part of it, or with `whole` the parts of all ranks.

    Each rank reports its own part, once another process could read it, or one rank reports all parts. `seconds` is how long the
    training paused for it. Without it, this module measures the time if the script calls `step`.

    The checkpoint answers the newest notice for which `should_save` has returned True, unless that was at a later step. In a
    script that does not call `should_save`, it answers the newest one that `notice` has returned.

    Without an agent it does nothing. If the agent is busy, it waits at most two seconds. `step` is a whole number from 0 to
    2**53 - 1, and `seconds` is not negative; others raise `TypeError` or `ValueError`.
    """
    number = _steps.whole(step, "report a checkpoint: step", "ragent.saved(int(step))")
    milliseconds = None if seconds is None else _milliseconds(seconds)
    lines = [f"X_RAGENT_SAVED={number}"]
    if whole:
        lines.append("X_RAGENT_SAVED_WHOLE=1")
    if milliseconds is not None:
        lines.append(f"X_RAGENT_SAVE_MS={milliseconds}")
    answered = _answered(number)
    if answered:
        lines.append(f"X_RAGENT_NOTICE={answered}")
    _steps.report_saved(lines, is_measured=milliseconds is None)


def save_failed(reason: str) -> None:
    """Reports that a checkpoint could not be written, until the next one is reported."""
    _steps.report_saved([f"X_RAGENT_SAVE_FAILED={' '.join(reason.split())}"], is_measured=False)


def _answered(step: int) -> int:
    """Returns the number of the notice that a checkpoint of this step answers, or 0."""
    if not _state.has_asked:
        return _notices.seen()
    if _state.answer is None:
        return 0
    number, since = _state.answer
    return number if step >= since else 0


def _milliseconds(seconds: Any) -> int:
    # `float` alone would accept text.
    kind: Any = ValueError if hasattr(type(seconds), "__float__") else TypeError
    if kind is ValueError:
        # Rounding an infinite number, or none, raises an error.
        with suppress(TypeError, ValueError, OverflowError):
            number = round(float(seconds) * 1000)
            if 0 <= number <= _steps.MAX:
                return number
    raise kind(
        f"failed to report a checkpoint: seconds {seconds!r} is not a number of at least 0; pass the time for which the training "
        "paused, such as `ragent.saved(step, seconds=9.8)`"
    )
