"""Reports progress from a training script."""

from __future__ import annotations

import os
from operator import index

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Optional, SupportsIndex

# The agent ignores greater steps.
_MAX = 2**53 - 1

_get = os.environ.get
# The socket of this process, and its process id. After a fork, the descriptor may have been closed and used again.
_socket: tuple[Optional[socket.socket], int] = (None, 0)


def step(n: SupportsIndex, total: Optional[SupportsIndex] = None) -> None:
    """Reports that this worker has reached a training step, and optionally the number of all steps.

    Without an agent, and if the agent does not take the report, it does nothing. Both values are whole numbers from 0 to
    2**53 - 1; others raise `TypeError` or `ValueError`.
    """
    try:
        number = index(n)
        steps = None if total is None else index(total)
    except TypeError:
        raise _wrong(TypeError, n, total) from None
    if not (0 <= number <= _MAX and (steps is None or 0 <= steps <= _MAX)):
        raise _wrong(ValueError, n, total)
    # A process that imports modules before it becomes a worker has the variable only then.
    path = _get("RAGENT_SOCKET")
    if path:
        text = f"X_RAGENT_STEP={number}" if steps is None else f"X_RAGENT_STEP={number}\nX_RAGENT_STEPS={steps}"
        try:
            _own_socket().sendto(text.encode(), path)
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


def _wrong(kind: Any, n: object, total: object) -> Any:
    return kind(
        f"failed to report a training step: step {n!r} of {total!r} is not a whole number from 0 to 2**53 - 1; pass the "
        "number of completed steps, such as `ragent.step(int(n))`"
    )
