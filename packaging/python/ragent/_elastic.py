"""Launches functions, in place of torch's `elastic_launch`."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Union

from ._launch import Command
from ._worker import CALL, read_results, write_private

# Variables that the configuration and the entrypoint replace.
_REPLACED = frozenset(
    f"PET_{name}"
    for name in (
        *("NNODES", "NPROC_PER_NODE", "RDZV_BACKEND", "RDZV_ENDPOINT", "RDZV_ID", "RDZV_CONF", "STANDALONE", "NODE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "LOCAL_ADDR", "MAX_RESTARTS", "MONITOR_INTERVAL", "START_METHOD", "ROLE", "MODULE"),
        *("NO_PYTHON", "RUN_PATH", "LOG_DIR", "REDIRECTS", "TEE", "LOG_LINE_PREFIX_TEMPLATE", "LOCAL_RANKS_FILTER"),
        *("DUPLICATE_STDOUT_FILTERS", "DUPLICATE_STDERR_FILTERS", "EVENT_LOG_HANDLER", "NUMA_BINDING"),
        *("SIGNALS_TO_HANDLE", "SHUTDOWN_TIMEOUT", "VIRTUAL_LOCAL_RANK"),
    )
) | {"TORCHELASTIC_SIGNALS_TO_HANDLE", "PYTHON_EXEC"}

Streams = Union[int, str, Mapping[int, int]]


@dataclass
class LaunchConfig:
    """The settings of a job, with the names of torch's `LaunchConfig`."""

    min_nodes: int = 1
    """The smallest number of nodes."""
    max_nodes: int = 1
    """The largest number of nodes."""
    nproc_per_node: Union[int, str] = 1
    """The number of workers on this node, or `auto`, `cpu`, `gpu`, `xpu`."""
    run_id: str = ""
    """The name of the job. Required with several nodes."""
    role: str = "default_role"
    """The role of the workers."""
    rdzv_endpoint: str = ""
    """The endpoint, or a list of voters. Required with several nodes."""
    rdzv_backend: str = "c10d"
    """`c10d`, `static`, `etcd` or `etcd-v2`."""
    rdzv_configs: Dict[str, Any] = field(default_factory=dict)
    """The settings of `--rdzv-conf`. `rank` is the rank of this node with `static`."""
    max_restarts: int = 3
    """The number of failures that are followed by another round."""
    monitor_interval: float = 0.1
    """Without effect: the agent does not poll."""
    start_method: str = "spawn"
    """Without effect: workers are always new processes."""
    log_dir: Optional[str] = None
    """The folder of the log files."""
    redirects: Streams = 0
    """The streams to write to files: 0 none, 1 stdout, 2 stderr, 3 both, or a value for each local rank."""
    tee: Streams = 0
    """The streams to write to files and to the console."""
    local_ranks_filter: Optional[Sequence[int]] = None
    """The local ranks whose streams are shown on the console."""
    log_line_prefix_template: Optional[str] = None
    """The prefix of the lines of `tee`."""
    local_addr: Optional[str] = None
    """The address of this node."""
    event_log_handler: str = "null"
    """The destination of the events of workers."""
    numa_binding: Optional[str] = None
    """The processors of each worker: `node`, `socket`, `exclusive` or `core-complex`."""
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    """The signals on which this node leaves the job."""
    duplicate_stdout_filters: Optional[List[str]] = None
    """The texts of lines of stdout that are copied to another file."""
    duplicate_stderr_filters: Optional[List[str]] = None
    """The same for stderr."""
    virtual_local_rank: bool = False
    """True if each worker sees its own accelerator only."""
    shutdown_timeout: Optional[int] = None
    """The seconds for workers to end after a signal."""
    flags: Sequence[str] = ()
    """Further flags of the program, such as `["--standby", "--hang-timeout=600"]`."""


class elastic_launch:
    """Runs a function, or a program, on all workers of a job, as torch's `elastic_launch` does.

    `config` is a `LaunchConfig` of this module or of torch. The call takes the arguments of the function, and returns the
    values that it has returned on the workers of this node, by global rank. For a program, the result is empty. ragent has no
    server for health checks: `health_check_server` must be `None`.
    """

    def __init__(
        self, config: Any, entrypoint: Union[Callable[..., Any], str], health_check_server: Any = None
    ) -> None:
        if health_check_server is not None:
            raise ValueError(
                "failed to launch with a `health_check_server`, which ragent does not have: pass `None`, and read `/metrics` at the "
                "agent's port instead"
            )
        if not isinstance(entrypoint, str) and not callable(entrypoint):
            raise TypeError(
                f"failed to launch an entrypoint of type `{type(entrypoint).__name__}`: pass a function, or the path of a program"
            )
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> Dict[int, Any]:
        flags = _flags(self._config)
        if isinstance(self._entrypoint, str):
            words = ["--no-python", self._entrypoint, *map(str, args)]
            command = _command([*flags, *words])
            with command.forwarding() as signals:
                command.run(signals)
            return {}
        import shutil
        import tempfile

        call = _pickled(self._entrypoint, args)
        worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_worker.py")
        # The signals are raised again last, when the folder is removed.
        with _command(flags).forwarding() as signals:
            folder = tempfile.mkdtemp(prefix="ragent-")
            try:
                write_private(os.path.join(folder, CALL), call)
                _command([*flags, worker, folder], _name_of(self._entrypoint)).run(signals)
                return read_results(folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _command(args: List[str], name: Optional[str] = None) -> Command:
    # By the name of torchrun, the program has no subcommands. It does not use values of Slurm or MPI, and prints only
    # warnings and errors.
    return Command(args, "torchrun", removed=_REPLACED, name=name)


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _pickled(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """Returns the contents of the file that a worker reads: the state of this process, then the call."""
    from multiprocessing import spawn

    preparation = spawn.get_preparation_data("ragent-worker")
    # Pickling refuses the key, and a worker does not need it.
    preparation.pop("authkey", None)
    call = (function, tuple(args))
    # A new process cannot import what an interactive session has defined, and pickle does not find that out.
    is_interactive = not hasattr(sys.modules["__main__"], "__file__")
    first, second = (_cloudpickled, pickle.dumps) if is_interactive else (pickle.dumps, _cloudpickled)
    try:
        pickled = first(call)
    except Exception as error:
        try:
            if is_interactive and getattr(function, "__module__", None) == "__main__":
                raise
            pickled = second(call)
        except Exception:
            raise TypeError(
                f"failed to launch `{_name_of(function)}`: the function or its arguments cannot be pickled: {error}; pass a "
                "function of a module or script, with arguments that can be pickled, or install `cloudpickle`"
            ) from error
    return pickle.dumps(preparation) + pickled


def _cloudpickled(call: Any) -> bytes:
    pickled: bytes = import_module("cloudpickle").dumps(call)
    return pickled


def _flags(config: Any) -> List[str]:
    """Returns the flags for a configuration of this module or of torch.

    Raises `ValueError` if a field has a value that ragent does not support.
    """
    settings = _Settings(config)
    flags = _rendezvous(settings)
    flags.append(f"--nproc-per-node={settings.take('nproc_per_node', 1)}")
    # A configuration of another version of torch may lack fields.
    flags.append(f"--max-restarts={settings.take('max_restarts', 3)}")
    flags += _output(settings)
    for name, flag, default in (
        ("role", "--role", ""),
        ("local_addr", "--local-addr", ""),
        ("log_line_prefix_template", "--log-line-prefix-template", ""),
        ("event_log_handler", "--event-log-handler", "null"),
        ("signals_to_handle", "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
        ("shutdown_timeout", "--shutdown-timeout", ""),
        ("numa_binding", "--numa-binding", ""),
    ):
        value = settings.take(name)
        if value not in (None, "", default):
            flags.append(f"{flag}={value}")
    numa = settings.take("numa_options")
    if numa is not None:
        mode = getattr(numa, "affinity_mode", None)
        flags.append(f"--numa-binding={getattr(mode, 'value', mode)}")
    for stream in ("stdout", "stderr"):
        filters = settings.take(f"duplicate_{stream}_filters")
        if filters:
            flags.append(f"--duplicate-{stream}-filters=" + ",".join(text.replace(",", ",,") for text in filters))
    if settings.take("virtual_local_rank"):
        flags.append("--virtual-local-rank")
    if settings.take("metrics_cfg"):
        settings.refuse("metrics_cfg", "leave it empty, and use `--metrics-listen` for metrics")
    # Without effect on ragent, as documented.
    settings.take("monitor_interval")
    settings.take("start_method")
    flags += settings.take("flags", ())
    settings.finish()
    return flags


def _rendezvous(settings: _Settings) -> List[str]:
    least, most = settings.take("min_nodes", 1), settings.take("max_nodes", 1)
    if not 1 <= least <= most:
        settings.refuse("min_nodes", f"pass at least 1 and at most `max_nodes`, which is {most}", least)
    backend, endpoint = settings.take("rdzv_backend", "c10d"), settings.take("rdzv_endpoint", "")
    run_id = settings.take("run_id", "")
    conf = dict(settings.take("rdzv_configs") or {})
    timeout = settings.take("rdzv_timeout")
    if timeout not in (None, -1):
        conf.setdefault("timeout", timeout)
    rank = conf.pop("rank", None)
    flags = [f"--nnodes={least}:{most}"]
    if most == 1 and not endpoint and backend in ("c10d", "static"):
        flags.append("--standalone")
    elif not endpoint:
        settings.refuse("rdzv_endpoint", "pass the address of the node that hosts the job, such as `node0:29400`", endpoint)
    else:
        flags += [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}"]
    if run_id:
        flags.append(f"--rdzv-id={run_id}")
    elif most > 1:
        settings.refuse("run_id", "pass a name of the job, the same on all of its nodes", run_id)
    if rank is not None:
        flags.append(f"--node-rank={rank}")
    if conf:
        flags.append("--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in conf.items()))
    return flags


def _output(settings: _Settings) -> List[str]:
    folder, redirects, tee = settings.take("log_dir"), settings.take("redirects"), settings.take("tee")
    ranks = settings.take("local_ranks_filter")
    specs = settings.take("logs_specs")
    if specs is not None:
        if type(specs).__name__ != "DefaultLogsSpecs":
            settings.refuse("logs_specs", "pass torch's `DefaultLogsSpecs`; a plug-in cannot be used", specs)
        folder, redirects, tee = specs._root_log_dir, specs._redirects, specs._tee
        ranks = getattr(specs, "_local_ranks_filter", None)
    flags = []
    if folder and folder != os.devnull:
        flags.append(f"--log-dir={folder}")
    for flag, value in (("--redirects", redirects), ("--tee", tee)):
        if value:
            flags.append(f"{flag}={_streams(value)}")
    if ranks:
        flags.append("--local-ranks-filter=" + ",".join(str(rank) for rank in sorted(ranks)))
    return flags


def _streams(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{rank}:{int(streams)}" for rank, streams in value.items())
    return value if isinstance(value, str) else str(int(value))


class _Settings:
    """The fields of a configuration, each of which must be taken."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._left = {each.name: each for each in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else {}

    def take(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field. `default` if this configuration does not have it."""
        self._left.pop(name, None)
        return getattr(self._config, name, default)

    def refuse(self, name: str, hint: str, value: Any = None) -> NoReturn:
        """Raises `ValueError` for the value of a field."""
        shown = value if value is not None else getattr(self._config, name, None)
        raise ValueError(f"failed to launch the job: `{name}={shown!r}` of the configuration is not supported; {hint}")

    def finish(self) -> None:
        """Raises `ValueError` if a field that was not taken has another value than its default."""
        for name, each in self._left.items():
            value = getattr(self._config, name, None)
            default = each.default
            if each.default_factory is not dataclasses.MISSING:
                default = each.default_factory()
            if value is not None and value != default:
                self.refuse(name, "leave it at its default", value)
