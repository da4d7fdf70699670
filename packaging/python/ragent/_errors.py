"""Defines the exceptions of this module."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from ._failures import ProcessFailure as ProcessFailure
    from ._report import Report


class LaunchError(RuntimeError):
    """A launch that has ended without the success of the job, other than by the failure of a worker."""

    __module__ = "ragent"

    exit_code: int
    """The exit code of the program, as in docs/exit-codes.md, or the negative number of the signal that killed it."""
    report: Optional[Report]
    """The report of the job, if the program has written one."""

    def __init__(self, text: str, exit_code: int = 1, report: Optional[Report] = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.exit_code, self.report)


class CommandLineError(LaunchError, ValueError):
    """An invalid command line, for which torchrun's functions raise `ValueError`."""

    __module__ = "ragent"


class CommandLineExit(CommandLineError, SystemExit):
    """The same for `main`: if nothing catches it, the process exits with 2, without a traceback."""

    def __init__(self, text: str, exit_code: int = 2, report: Optional[Report] = None) -> None:
        super().__init__(text, exit_code, report)
        # The exit code of a `SystemExit`. The program has printed its message.
        self.code = exit_code


class StatusError(RuntimeError):
    """A state that could not be requested. Its text is the message of the program."""

    __module__ = "ragent"

    exit_code: Optional[int]
    """The exit code of the program. `None` if it did not end in time."""

    def __init__(self, text: str, exit_code: Optional[int] = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.exit_code)


class ChildFailedError(Exception):
    """A worker has failed, and no restart was left. The text is the report of the job.

    If torch is loaded, the raised exception is also a
    `torch.distributed.elastic.multiprocessing.errors.ChildFailedError`.
    """

    __module__ = "ragent"

    name: str
    """The script of the workers, or the name of their function."""
    failures: dict[int, ProcessFailure]
    """The first failure of the job, by its global rank."""
    report: Optional[Report]
    """The report of the job."""

    def __init__(self, name: str, failures: dict[int, ProcessFailure], report: Optional[Report] = None) -> None:
        if not failures:
            raise ValueError("failed to create a ChildFailedError: `failures` is empty; pass at least one failure")
        self.name = name
        self.failures = failures
        self.report = report
        # Not super(): torch's class, which may be a base as well, would replace the text.
        Exception.__init__(self, report.text if report is not None and report.text else self._summary())

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Returns the global rank of the worker that failed first, and its failure."""
        return min(self.failures.items(), key=lambda item: item[1].timestamp)

    def _summary(self) -> str:
        rank, failure = self.get_first_failure()
        return f"{self.name} failed: rank {rank} ended with exit code {failure.exitcode} (process {failure.pid})"

    def __reduce__(self) -> tuple[Any, ...]:
        return child_failed_error, (self.name, self.failures, self.report)


_joint_class: Optional[type[ChildFailedError]] = None


def child_failed_error(
    name: str, failures: dict[int, ProcessFailure], report: Optional[Report] = None
) -> ChildFailedError:
    """Returns the exception, which is also one of torch's class if torch is loaded."""
    global _joint_class
    if _joint_class is None:
        torchs = torch_errors()
        if torchs is not None:
            attributes = {"__doc__": ChildFailedError.__doc__, "__module__": "ragent"}
            _joint_class = type("ChildFailedError", (ChildFailedError, torchs.ChildFailedError), attributes)
    return (_joint_class or ChildFailedError)(name, failures, report)


def torch_errors() -> Any:
    """Returns torch's module of errors. `None` if torch is not loaded, since importing it takes seconds."""
    if "torch" not in sys.modules:
        return None
    from importlib import import_module

    try:
        return import_module("torch.distributed.elastic.multiprocessing.errors")
    except ImportError:
        return None


def __getattr__(name: str) -> Any:
    if name == "ProcessFailure":
        from ._failures import ProcessFailure

        return ProcessFailure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
