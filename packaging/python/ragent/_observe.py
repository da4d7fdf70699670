"""Starts torch's worker server, so that a job that stands still says why.

The server answers only this user, on the socket in `TORCH_WORKER_SERVER_SOCKET`: stacks, and torch's records of its collectives.
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SOCKET = "TORCH_WORKER_SERVER_SOCKET"
_RECORDS = "TORCH_FR_DUMP_TEMP_FILE"
_OLD_RECORDS = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"

# The server of this process, and its process id: after a fork, the thread of the server is gone.
_server: "tuple[Any, int]" = (None, 0)


def observe() -> bool:
    """Starts torch's worker server in this process. Returns true if it runs.

    It does not run if the process is no worker of ragent, if torch is too old, or if another server has the socket. A second call
    changes nothing.
    """
    global _server
    _respect_old_name()
    path = os.environ.get(_SOCKET)
    if _server[1] == os.getpid():
        return True
    if not path:
        return False
    try:
        bindings = import_module("torch._C._distributed_c10d")
    except ImportError:
        return False
    start = getattr(bindings, "_WorkerServer", None)
    if start is None:
        return False
    if getattr(bindings, "_ragent_worker_server", 0) == os.getpid():
        # The hook of standbys has started it.
        return True
    try:
        server = start(path)
    except RuntimeError:
        # The script has called `worker_main`.
        return False
    _keep(server)
    _server = (server, os.getpid())
    return True


def _keep(server: "Any") -> None:
    """Prevents the end of the server before that of the process.

    The end of the object would close the socket, which forked processes share: if one of them ended by `sys.exit`, the server of this
    process would fail, and abort it.
    """
    from ctypes import py_object, pythonapi

    pythonapi.Py_IncRef(py_object(server))


def _respect_old_name() -> None:
    """Removes the path for records that the agent has chosen, if the script has chosen one by the older name of the variable.

    torch prefers the newer name.
    """
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    chosen = os.path.join(os.path.dirname(os.path.dirname(error_file)), "nccl_trace_rank_")
    if _OLD_RECORDS in os.environ and os.environ.get(_RECORDS) == chosen:
        del os.environ[_RECORDS]
