"""Launcher of distributed training jobs, in place of torchrun.

`run`, `main` and `elastic_launch` correspond to torch's functions of the same names; `step` reports the training step
from a script, and `status` returns the state of a job. The names are imported when they are first used.
"""

# `typing` is not imported: importing this module must be fast in a training script.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._elastic import LaunchConfig, elastic_launch
    from ._errors import ChildFailedError, CommandLineError, LaunchError, ProcessFailure, StatusError
    from ._launch import main, run
    from ._report import Failure, Report
    from ._status import (
        Incomplete,
        LastRestart,
        Node,
        Outcome,
        Progress,
        RefusedPeer,
        RestartStages,
        Restarts,
        Standbys,
        StateTime,
        Status,
        Time,
        Unreached,
        Voter,
        WorkerFailure,
        status,
    )
    from ._steps import step

    __version__: str

__all__ = [
    "ChildFailedError",
    "CommandLineError",
    "Failure",
    "Incomplete",
    "LastRestart",
    "LaunchConfig",
    "LaunchError",
    "Node",
    "Outcome",
    "ProcessFailure",
    "Progress",
    "RefusedPeer",
    "Report",
    "RestartStages",
    "Restarts",
    "Standbys",
    "StateTime",
    "Status",
    "StatusError",
    "Time",
    "Unreached",
    "Voter",
    "WorkerFailure",
    "__version__",
    "elastic_launch",
    "main",
    "run",
    "status",
    "step",
]

_MODULES = {
    "_elastic": "LaunchConfig elastic_launch",
    "_errors": "ChildFailedError CommandLineError LaunchError ProcessFailure StatusError",
    "_launch": "main run",
    "_report": "Failure Report",
    "_status": "Incomplete LastRestart Node Outcome Progress RefusedPeer RestartStages Restarts Standbys StateTime Status "
    "Time Unreached Voter WorkerFailure status",
    "_steps": "step",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    value: "Any"
    if name == "__version__":
        value = _version()
    else:
        for module, names in _MODULES.items():
            if name in names.split():
                value = getattr(import_module("." + module, __name__), name)
                break
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted(set(globals()) | set(__all__))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ragent-launch")
    except PackageNotFoundError:
        return "unknown"
