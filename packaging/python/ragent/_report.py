"""The outcome of a job, as `--report` writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

from ._records import one, read


@dataclass(frozen=True)
class Failure:
    """The first failure of a job, on any node."""

    host_name: str = ""
    """The host name of the worker's node."""
    round: Optional[int] = None
    """The round in which it failed."""
    global_rank: int = 0
    """`RANK` of the worker."""
    local_rank: int = 0
    """`LOCAL_RANK` of the worker."""
    pid: int = 0
    """Its process id on its node. 0 if it could not be started."""
    ended: str = ""
    """The end of the worker, as text."""
    hardware: Tuple[str, ...] = ()
    """What the hardware of its node has reported since the round began."""
    oom: Optional[str] = None
    """`probable` if the kernel has probably killed it for lack of memory."""
    exit_code: Optional[int] = None
    """The exit code, if it has exited by itself."""
    signal: Optional[int] = None
    """The signal that has killed it, if any."""
    error_file: Optional[str] = None
    """The path of its error file on its node."""
    message: Optional[str] = None
    """The text in its error file, such as the traceback of an exception."""
    stderr_tail: str = ""
    """Its last lines on stderr, if they pass through the agent."""


@dataclass(frozen=True)
class Report:
    """The outcome of a job on this node."""

    ragent: str = ""
    """The version of the program."""
    run_id: str = ""
    """The name of the job."""
    script: str = ""
    """The script or program of the workers."""
    interpreter: Optional[str] = None
    """The interpreter of the script on this node. `None` if the workers are programs."""
    result: str = ""
    """A stable word: `succeeded`, `budget_spent`, `left`, `refused`, …"""
    exit_code: int = 0
    """The exit code of the program."""
    text: str = ""
    """The error message. Empty after success."""
    restarts_used: int = 0
    """The number of charged failures."""
    first_failure: Optional[Failure] = one(Failure)
    """The first failure of the job, if a worker has failed."""
    other_failures: int = 0
    """The number of other workers that failed by themselves in the same round."""
    ended_at: Optional[int] = None
    """The end of the job, in milliseconds since the Unix epoch."""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The object of the file."""


def parse(text: str) -> Optional[Report]:
    """Returns the report in the contents of a file. `None` if there is none."""
    import json

    try:
        return read(Report, json.loads(text))
    except ValueError:
        return None
