"""Reads the state of a job, as `ragent status --json` prints it.

Fields that an older program does not print are `None` or empty, and those that this module does not have are in `raw`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Tuple

from ._errors import LaunchError, StatusError
from ._program import cannot_start, environment, find
from ._records import many, one, read, variant


@dataclass(frozen=True)
class StateTime:
    """The time of a job in one state."""

    state: str = ""
    ms: int = 0
    settled_ms: int = 0


@dataclass(frozen=True)
class Time:
    """The time account of a job."""

    states: Tuple[StateTime, ...] = many(StateTime)
    redone_ms: Optional[int] = None
    now: Optional[str] = None

    def of(self, state: str) -> int:
        """Returns the time in a state, in milliseconds."""
        return sum(each.ms for each in self.states if each.state == state)


@dataclass(frozen=True)
class RestartStages:
    """The time of a restart in each stage, in milliseconds."""

    saving_ms: int = 0
    stopping_ms: int = 0
    waiting_ms: int = 0
    rendezvous_ms: int = 0
    starting_ms: int = 0


@dataclass(frozen=True)
class LastRestart:
    """The cost of the last restart."""

    why: str = ""
    stages: Optional[RestartStages] = one(RestartStages)
    redone_steps: Optional[int] = None
    is_complete: Optional[bool] = None


@dataclass(frozen=True)
class Restarts:
    """The restarts of a job by one cause."""

    cause: str = ""
    count: int = 0
    cost_ms: int = 0
    redone_steps: Optional[int] = None


@dataclass(frozen=True)
class Standbys:
    """The standbys of a node."""

    ready: int = 0
    importing: int = 0
    size: int = 0
    obstacle: Optional[str] = None


@dataclass(frozen=True)
class Node:
    """One node of a job."""

    node_id: str = ""
    host_name: str = ""
    address: str = ""
    observed: Optional[str] = None
    agent_port: Optional[int] = None
    group_rank: Optional[int] = None
    first_global_rank: Optional[int] = None
    local_world_size: Optional[int] = None
    state: str = ""
    last_seen_ms: Optional[int] = None
    reason: Optional[str] = None
    progress: Optional[str] = None
    progress_age_ms: Optional[int] = None
    standbys: Optional[Standbys] = one(Standbys)
    load: Optional[str] = None
    unhealthy: Optional[str] = None
    excluded: Optional[str] = None


@dataclass(frozen=True)
class Incomplete:
    """The reason why the next round is not complete."""

    kind: str = ""
    text: str = ""


@dataclass(frozen=True)
class RefusedPeer:
    """The refused connections from one address."""

    address: str = ""
    count: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Unreached:
    """A connection between two nodes that could not be opened."""

    host_name: str = ""
    to: str = ""
    why: str = ""


@dataclass(frozen=True)
class Progress:
    """The training step of a job."""

    source: str = ""
    step: Optional[int] = None
    highest: Optional[int] = None
    steps_left: Optional[int] = None
    step_ms: Optional[float] = None
    age_ms: Optional[int] = None


@dataclass(frozen=True)
class Saving:
    """The phase of a notice, in which all ranks may save."""

    notice: int = 0
    kind: str = ""
    hosts: Tuple[str, ...] = ()
    source: str = ""
    saved_ranks: int = 0
    ranks: int = 0
    missing: str = ""
    left_ms: Optional[int] = None


@dataclass(frozen=True)
class CheckpointTimes:
    """How often a job saves, and how often it should."""

    every_steps: Optional[int] = None
    every_ms: Optional[int] = None
    cost_ms: Optional[int] = None
    failure_every_ms: Optional[int] = None
    is_rate_measured: Optional[bool] = None
    lost: Optional[float] = None
    best_ms: Optional[int] = None
    best_steps: Optional[int] = None
    best_lost: Optional[float] = None


@dataclass(frozen=True)
class Stall:
    """Workers that make no progress for much longer than usual."""

    step: Optional[int] = None
    for_ms: Optional[int] = None
    limit_ms: Optional[int] = None
    text: Optional[str] = None
    facts: Tuple[str, ...] = ()
    rank: Optional[int] = None


@dataclass(frozen=True)
class LookPlace:
    """Workers in the same place."""

    text: str = ""
    count: int = 0
    # The first and the last rank of each range.
    ranks: Tuple[List[int], ...] = ()
    stack: Optional[str] = None


@dataclass(frozen=True)
class Look:
    """The places of the workers at the newest look."""

    number: int = 0
    age_ms: int = 0
    text: Optional[str] = None
    places: Tuple[LookPlace, ...] = many(LookPlace)
    further: int = 0
    unknown: int = 0
    has_stacks: Optional[bool] = None
    has_lines: Optional[bool] = None


@dataclass(frozen=True)
class MemoryBytes:
    """The bytes of checkpoints on all nodes, by the reason why they are kept."""

    own: int = 0
    copy: int = 0
    leftover: int = 0


@dataclass(frozen=True)
class MemoryStatus:
    """The checkpoints in the memory of the nodes."""

    step: Optional[int] = None
    is_copied: Optional[bool] = None
    age_ms: Optional[int] = None
    cost_ms: Optional[int] = None
    needed: Optional[int] = None
    limit: Optional[int] = None
    bytes: Optional[MemoryBytes] = one(MemoryBytes)
    copy_ms: Optional[int] = None
    waited_ms: int = 0
    text: Optional[str] = None


@dataclass(frozen=True)
class HardwareFact:
    """Something that the hardware of a node has reported."""

    text: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class WorkerFailure:
    """The failure of a worker."""

    host_name: str = ""
    global_rank: Optional[int] = None
    local_rank: Optional[int] = None
    pid: Optional[int] = None
    end: str = variant()
    message: Optional[str] = None
    error_file: Optional[str] = None
    stderr_tail: str = ""
    is_final: Optional[bool] = None
    hardware: Tuple[HardwareFact, ...] = many(HardwareFact)
    oom: Optional[str] = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job that has ended."""

    result: str = variant()
    first_failure: Optional[WorkerFailure] = one(WorkerFailure)
    other_failures: int = 0
    further_failures: Tuple[WorkerFailure, ...] = many(WorkerFailure)
    restarts_used: int = 0


@dataclass(frozen=True)
class Voter:
    """One of the agents that elect the coordinator."""

    endpoint: str = ""
    is_leader: bool = False
    silent_ms: Optional[int] = None


@dataclass(frozen=True)
class Status:
    """The state of a job."""

    run_id: str = ""
    job_uid: str = ""
    term: Optional[int] = None
    round: Optional[int] = None
    phase: str = ""
    min_nodes: Optional[int] = None
    max_nodes: Optional[int] = None
    phase_ms: Optional[int] = None
    time: Optional[Time] = one(Time)
    last_restart: Optional[LastRestart] = one(LastRestart)
    restarts: Tuple[Restarts, ...] = many(Restarts)
    restarts_used: Optional[int] = None
    restarts_forgiven: int = 0
    max_restarts: Optional[int] = None
    world_size: Optional[int] = None
    nodes: Tuple[Node, ...] = many(Node)
    incomplete: Optional[Incomplete] = one(Incomplete)
    refused_clients: Tuple[str, ...] = ()
    refused_peers: Tuple[RefusedPeer, ...] = many(RefusedPeer)
    unreached: Tuple[Unreached, ...] = many(Unreached)
    progress: Optional[Progress] = one(Progress)
    saving: Optional[Saving] = one(Saving)
    checkpoints: Optional[CheckpointTimes] = one(CheckpointTimes)
    saved_step: Optional[int] = None
    save_failed: Optional[str] = None
    stall: Optional[Stall] = one(Stall)
    look: Optional[Look] = one(Look)
    memory: Optional[MemoryStatus] = one(MemoryStatus)
    outcome: Optional[Outcome] = one(Outcome)
    leader: Optional[str] = None
    voters: Tuple[Voter, ...] = many(Voter)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The object that the program has printed."""


def status(endpoint: Optional[str] = None, *, timeout: Optional[float] = 30) -> Status:
    """Returns the state of a job.

    `endpoint` is the endpoint of the job or of one of its agents, a list of voters with commas, or `auto`; by default, the
    running job of this user on this machine. Raises `StatusError` if the state is not received within `timeout` seconds.
    """
    import json
    import subprocess

    try:
        program = find()
    except LaunchError as error:
        raise StatusError(str(error), error.exit_code) from None
    command = ["ragent", "status", "--json"]
    if endpoint is not None:
        command.append(f"--rdzv-endpoint={endpoint}")
    try:
        end = subprocess.run(
            command,
            executable=program,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        job = "the running job of this user" if endpoint is None else f"the job at {endpoint}"
        raise StatusError(
            f"failed to get the status of {job}\n"
            f"  caused by: no answer within {timeout} s\n"
            "hint: check that its agents are running, or pass a greater `timeout`"
        ) from None
    except OSError as error:
        raise StatusError(str(cannot_start(program, error)), 1) from error
    if end.returncode:
        message = end.stderr.decode(errors="replace").strip()
        message = message.replace("error: ", "", 1).replace("--rdzv-endpoint HOST:PORT", 'ragent.status("HOST:PORT")')
        raise StatusError(message, end.returncode)
    try:
        state = read(Status, json.loads(end.stdout))
    except ValueError:
        state = None
    if state is None:
        raise StatusError(
            f"failed to read the status of the job\n"
            f"  caused by: {program} has printed no JSON object\n"
            "hint: check its version with `ragent --version`",
            end.returncode,
        )
    return state
