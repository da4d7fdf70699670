"""Launcher of distributed training jobs, in place of torchrun.

`run`, `main` and `elastic_launch` correspond to torch's functions of the same names, and `status` returns the state of a job.
A training script reports its step with `step`. With `notice`, `should_save` and `saved` it saves a checkpoint before its node is
taken. `CheckpointManager` saves checkpoints in memory and in a folder, and `ragent.checkpoint` has the part in memory.
`GlobalBatchSampler` keeps the batches when the number of ranks changes. `observe` lets the agent ask torch why the job stands still. The names
are imported when they are first used.
"""

# `typing` is not imported: importing this module must be fast in a training script.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._batches import GlobalBatchSampler
    from ._checkpoints import CheckpointManager
    from ._elastic import LaunchConfig, elastic_launch
    from ._errors import ChildFailedError, CommandLineError, LaunchError, ProcessFailure, StatusError
    from ._launch import main, run
    from ._notices import Notice, notice
    from ._observe import observe
    from ._report import Failure, Report
    from ._saves import saved, should_save
    from ._status import (
        CheckpointTimes,
        HardwareFact,
        Incomplete,
        LastRestart,
        Look,
        LookPlace,
        MemoryBytes,
        MemoryStatus,
        Node,
        Outcome,
        Progress,
        RefusedPeer,
        RestartStages,
        Restarts,
        Saving,
        Stall,
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
    "CheckpointManager",
    "CheckpointTimes",
    "ChildFailedError",
    "CommandLineError",
    "Failure",
    "GlobalBatchSampler",
    "HardwareFact",
    "Incomplete",
    "LastRestart",
    "LaunchConfig",
    "LaunchError",
    "Look",
    "LookPlace",
    "MemoryBytes",
    "MemoryStatus",
    "Node",
    "Notice",
    "Outcome",
    "ProcessFailure",
    "Progress",
    "RefusedPeer",
    "Report",
    "RestartStages",
    "Restarts",
    "Saving",
    "Stall",
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
    "notice",
    "observe",
    "run",
    "saved",
    "should_save",
    "status",
    "step",
]

_MODULES = {
    "_batches": "GlobalBatchSampler",
    "_checkpoints": "CheckpointManager",
    "_elastic": "LaunchConfig elastic_launch",
    "_errors": "ChildFailedError CommandLineError LaunchError ProcessFailure StatusError",
    "_launch": "main run",
    "_notices": "Notice notice",
    "_observe": "observe",
    "_report": "Failure Report",
    "_saves": "saved should_save",
    "_status": "CheckpointTimes HardwareFact Incomplete LastRestart Look LookPlace MemoryBytes MemoryStatus Node Outcome Progress RefusedPeer "
    "RestartStages Restarts Saving Stall Standbys StateTime Status Time Unreached Voter WorkerFailure status",
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
