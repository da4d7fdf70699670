"""Reports progress from a training script, and measures how long the training pauses for a checkpoint.

A report is one datagram of lines to the socket of the agent, whose path is in `RAGENT_SOCKET`:

| line | when |
|---|---|
| `X_RAGENT_STEP=`, `X_RAGENT_STEPS=` | with each `step`: the step, and the number of all steps if it is given |
| `X_RAGENT_SAVED=` | with each `saved`: the step whose checkpoint is on storage |
| `X_RAGENT_SAVED_WHOLE=1` | with `saved(…, whole=True)`: the parts of all ranks are on storage |
| `X_RAGENT_NOTICE=` | with `saved`: the number of the notice that the checkpoint answers, if it answers one |
| `X_RAGENT_SAVE_MS=` | the cost of the newest checkpoint in milliseconds |

The last line is in the datagram of `saved` if the script gives `seconds`. Otherwise it is measured:

1. A usual step is the median of the last 32 intervals between two calls of `step` with different numbers. An interval with a
   `saved` in it does not count.
2. The cost is the interval with the `saved` in it, less a usual step, and at least 0. It is known at the `step` that ends this
   interval. So the line follows `X_RAGENT_STEP=` in the datagram of that step, and belongs to the newest `saved` before it.
3. If the agent does not take that datagram, the line is in the next one of a step, unless there is another `saved` before.

With fewer than three usual intervals, the cost is unknown, and there is no such line.
"""

from __future__ import annotations

import os
from operator import index
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, List, Optional, SupportsIndex, Tuple

# The agent ignores greater steps.
MAX = 2**53 - 1

# The number of intervals of which the median is a usual step, and the smallest number of which it is known.
_INTERVALS = 32
_ENOUGH = 3
# The seconds that the report of a checkpoint waits for an agent that is busy.
_PATIENCE = 2.0

_get = os.environ.get
_clock = monotonic
# The socket of this process, and its process id. After a fork, the descriptor may have been closed and used again.
_socket: Tuple[Optional[socket.socket], int] = (None, 0)

# The newest step, and the time of its report.
_newest: Tuple[int, float] = (-1, 0.0)
_intervals: List[float] = []
# True since the first checkpoint after the newest step, and true if its cost is to be measured.
_has_saved = False
_is_measured = False
# The measured cost of the newest checkpoint, until it is sent.
_cost: Optional[int] = None


def step(n: SupportsIndex, *, total: Optional[SupportsIndex] = None) -> None:
    """Reports that this worker has reached a training step, and optionally the number of all steps.

    Without an agent, and if the agent does not take the report, it does nothing. Both values are whole numbers from 0 to
    2**53 - 1; others raise `TypeError` or `ValueError`.
    """
    global _cost
    number = whole(n, "report a training step: step", "ragent.step(int(n))")
    steps = None if total is None else whole(total, "report a training step: total", "ragent.step(n, total=int(total))")
    # A process that imports modules before it becomes a worker has the variable only then.
    path = _get("RAGENT_SOCKET")
    if path:
        text = f"X_RAGENT_STEP={number}" if steps is None else f"X_RAGENT_STEP={number}\nX_RAGENT_STEPS={steps}"
        _measure(number)
        cost = _cost
        if cost is not None:
            text += f"\nX_RAGENT_SAVE_MS={cost}"
        try:
            _own_socket().sendto(text.encode(), path)
        except OSError:
            return
        if cost is not None:
            _cost = None


def whole(value: SupportsIndex, name: str, example: str, least: int = 0) -> int:
    """Returns the value as a number. Raises `TypeError` or `ValueError` if it is none from `least` to 2**53 - 1.

    `name` is the attempt and the name of the value.
    """
    kind: Any = ValueError
    try:
        number = index(value)
        if least <= number <= MAX:
            return number
    except TypeError:
        kind = TypeError
    raise kind(f"failed to {name} {value!r} is not a whole number from {least} to 2**53 - 1; pass one, such as `{example}`") from None


def _measure(number: int) -> None:
    """Measures the interval since the report of the step before."""
    global _newest, _has_saved, _cost
    before, begin = _newest
    if number == before:
        return
    now = _clock()
    _newest = (number, now)
    has_saved, _has_saved = _has_saved, False
    if before < 0:
        return
    interval = now - begin
    if not has_saved:
        _intervals.append(interval)
        del _intervals[:-_INTERVALS]
    elif _is_measured and len(_intervals) >= _ENOUGH:
        usual = sorted(_intervals)
        middle = len(usual) // 2
        median = usual[middle] if len(usual) % 2 else (usual[middle - 1] + usual[middle]) / 2
        _cost = max(0, round((interval - median) * 1000))


def report_saved(lines: List[str], is_measured: bool) -> None:
    """Sends the report of a checkpoint. `is_measured`: this module measures its cost.

    It is not skipped if the agent is busy, as that of a step: the job may end because of it. An agent that is stopped
    delays it by `_PATIENCE`.
    """
    global _has_saved, _is_measured, _cost
    path = _get("RAGENT_SOCKET")
    if not path:
        return
    # What was measured is the cost of an earlier one.
    _cost = None
    _has_saved, _is_measured = True, is_measured
    text = "\n".join(lines).encode()
    try:
        _own_socket().sendto(text, path)
    except BlockingIOError:
        _send_patiently(text, path)
    except OSError:
        pass


def _send_patiently(text: bytes, path: str) -> None:
    import socket

    try:
        # Only a socket that is connected can wait until the agent has read.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as patient:
            patient.settimeout(_PATIENCE)
            patient.connect(path)
            patient.send(text)
    except OSError:
        pass


def _own_socket() -> socket.socket:
    global _socket
    own, process = _socket
    if own is not None and process == os.getpid():
        return own
    if own is not None:
        # Not closed: the descriptor may be another file's.
        own.detach()
    import socket

    own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    _socket = own, os.getpid()
    return own
