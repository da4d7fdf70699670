"""Converts the failure of a worker to the form of torch's exceptions."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any, Optional

from ._errors import ChildFailedError, child_failed_error, torch_errors
from ._report import Failure, Report

_NOT_AVAILABLE = "<N/A>"


@dataclass
class ProcessFailure:
    """The failure of one worker, with the fields of torch's class of this name."""

    local_rank: int
    """`LOCAL_RANK` of the worker."""
    pid: int
    """Its process id on its node."""
    exitcode: int
    """Its exit code, or the negative number of the signal that killed it."""
    error_file: str
    """Its error file on this node, or `<N/A>`."""
    message: str
    """The text in its error file, or its end."""
    timestamp: int
    """The time of the failure, in seconds since the Unix epoch."""

    def signal_name(self) -> str:
        """Returns the name of the signal that killed the worker, or `<N/A>`."""
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return _NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Returns the local time of the failure."""
        return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(self.timestamp))


def of_report(report: Report, failure: Failure, name: Optional[str]) -> ChildFailedError:
    """Returns the exception for a report with a failure."""
    failures: dict[int, Any] = {failure.global_rank: _process_failure(report, failure)}
    return child_failed_error(name or report.script, failures, report)


def _process_failure(report: Report, failure: Failure) -> Any:
    # The file of a worker on another node is not here; the report has its text.
    file = failure.error_file or ""
    file = file if os.path.isfile(file) else _NOT_AVAILABLE
    message = failure.message or f"{failure.ended} (pid: {failure.pid})"
    ended_at = int(time.time()) if report.ended_at is None else report.ended_at // 1000
    local_rank, pid, code = failure.local_rank, failure.pid, _exit_code(failure)
    errors = torch_errors()
    if errors is None:
        return ProcessFailure(local_rank, pid, code, file, message, _timestamp(file, ended_at))
    try:
        torchs = errors.ProcessFailure(local_rank, pid, code, file)
    except Exception:
        # A file that is not in torch's format.
        torchs = errors.ProcessFailure(local_rank, pid, code, _NOT_AVAILABLE)
    if torchs.error_file == _NOT_AVAILABLE:
        torchs.message, torchs.timestamp = message, ended_at
    return torchs


def _exit_code(failure: Failure) -> int:
    if failure.exit_code is not None:
        return failure.exit_code
    if failure.signal is not None:
        return -failure.signal
    # The codes of torchrun for a worker that could not be started, and for a worker that the agent has killed.
    return 127 if failure.pid == 0 else -signal.SIGKILL


def _timestamp(file: str, default: int) -> int:
    import json

    try:
        with open(file, encoding="utf-8") as stream:
            return int(json.load(stream)["message"]["extraInfo"]["timestamp"])
    except (OSError, ValueError, KeyError, TypeError):
        return default
