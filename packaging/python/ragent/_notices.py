"""Reads the notice of this node: its machine is about to be taken, or a checkpoint is wanted.

The agent writes each notice to the file that `RAGENT_NOTICE_FILE` names, and replaces the file whole. If there is no file, there is no
notice.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Optional, Tuple

from ._steps import MAX
from ._users import check_owner

_SCHEMA = 1
# The most bytes of the file that are read. The agent writes less than 4 KiB.
_MAX_SIZE = 1 << 16
# A file that is younger, in nanoseconds, may be replaced by one with the same time and the same inode: clocks of file
# systems advance every 4 ms.
_SETTLED = 1_000_000_000

_get = os.environ.get


@dataclass(frozen=True)
class Notice:
    """A notice to this node, as its agent has written it."""

    notice: int
    """The number of the notice. A newer one has a higher number."""
    kind: str
    """`leave`: nodes leave the job. `end`: the job ends. `members`: nodes wait to join. `save`: a checkpoint is wanted."""
    hosts: Tuple[str, ...] = ()
    """The nodes that leave."""
    here: bool = False
    """True if this node leaves."""
    until: Optional[float] = None
    """The time until which workers may save, as Unix time of this machine. `None` for `save`, which has no such time."""
    text: str = ""
    """The cause, such as `SIGTERM`."""

    @property
    def seconds_left(self) -> Optional[float]:
        """The time that is left for saving, from 0 on."""
        return None if self.until is None else max(0.0, self.until - time.time())


# The file that was read last, and its notice.
_last: Tuple[Optional[Tuple[Any, ...]], Optional[Notice]] = (None, None)
_has_warned = False
# The newest number that a script has seen.
_seen = 0


def notice() -> Optional[Notice]:
    """Returns the newest notice of this node, or `None`. Other nodes may know it earlier or later.

    A call costs microseconds, so a script may call it at each step.
    """
    global _seen
    newest = current()
    if newest is not None:
        _seen = max(_seen, newest.notice)
    return newest


def seen() -> int:
    """Returns the newest number that `notice` has returned, or 0."""
    return _seen


def current() -> Optional[Notice]:
    """Returns the newest notice, like `notice`. The script does not see it, so `seen` does not change."""
    global _last
    path = _get("RAGENT_NOTICE_FILE")
    if not path:
        return None
    try:
        about = os.lstat(path)
        key, newest = _last
        if key == _key(about):
            return newest
        # It may have been replaced meanwhile.
        with open(path, "rb", opener=_open) as file:
            about = os.fstat(file.fileno())
            check_owner(about.st_uid)
            text = file.read(_MAX_SIZE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _warn(path, error)
        return None
    try:
        newest = _parse(text)
    except (TypeError, ValueError, RecursionError) as error:
        _warn(path, error)
        newest = None
    is_settled = time.time_ns() - about.st_mtime_ns > _SETTLED
    _last = (_key(about) if is_settled else None, newest)
    return newest


def _open(path: str, flags: int) -> int:
    # A link or a pipe is not the agent's.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _key(about: os.stat_result) -> Tuple[Any, ...]:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _parse(text: bytes) -> Notice:
    import json

    record = json.loads(text)
    if not isinstance(record, dict):
        raise TypeError(f"it contains a {type(record).__name__}")
    schema = record.get("schema")
    if schema != _SCHEMA:
        raise ValueError(f"its schema is {schema!r}, and this module knows schema {_SCHEMA}")
    number = _value(record, "notice", int)
    if not 0 < number <= MAX:
        raise ValueError(f"its number is {number}")
    hosts = _value(record, "hosts", list, [])
    if not all(isinstance(host, str) for host in hosts):
        raise TypeError(f"its hosts are {hosts!r}")
    until = _value(record, "until", (int, float), None)
    # Also false for `NaN`.
    if until is not None and not abs(until) <= MAX:
        raise ValueError(f"its end is {until!r}")
    return Notice(
        notice=number,
        kind=_value(record, "kind", str),
        hosts=tuple(hosts),
        here=_value(record, "here", bool, False),
        until=None if until is None else float(until),
        text=_value(record, "text", str, ""),
    )


def _value(record: Any, name: str, kind: Any, *default: Any) -> Any:
    if default and record.get(name) is None:
        return default[0]
    value = record.get(name)
    # A boolean is an `int`.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"its {name} is {value!r}")
    return value


def _warn(path: str, error: Exception) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        import warnings

        warnings.warn(
            f"failed to read the notice in `{path}`: {error}; this process gets no notices from it: install the version of "
            "ragent that the agent has",
            RuntimeWarning,
            stacklevel=4,
        )
