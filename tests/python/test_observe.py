"""`ragent.observe`: torch's worker server, on the socket that the agent has chosen."""

import os
import subprocess
import sys
import types

import pytest

import ragent
from ragent import _observe
from support import PACKAGE, needs

SOCKET = "TORCH_WORKER_SERVER_SOCKET"
RECORDS = "TORCH_FR_DUMP_TEMP_FILE"
OLD_RECORDS = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


@pytest.fixture
def servers(monkeypatch):
    """A torch whose servers are listed here, and a process without one."""
    started = []
    module = types.ModuleType("torch._C._distributed_c10d")
    module._WorkerServer = lambda path: started.append(path) or object()
    for name in ("torch", "torch._C"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(_observe, "_server", (None, 0))
    for name in (SOCKET, RECORDS, OLD_RECORDS, "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    return started


def test_one_server(servers, monkeypatch):
    """There is one server in a process, on the socket of the agent."""
    assert ragent.observe() is False
    monkeypatch.setenv(SOCKET, "/run/0.torch")
    assert ragent.observe() is True
    assert ragent.observe() is True
    assert servers == ["/run/0.torch"]


def test_after_a_fork(servers, monkeypatch):
    """The thread of a server does not exist in a forked process."""
    monkeypatch.setenv(SOCKET, "/run/0.torch")
    monkeypatch.setattr(_observe, "_server", (object(), os.getpid() + 1))
    assert ragent.observe() is True
    assert servers == ["/run/0.torch"]


def test_no_server(servers, monkeypatch):
    """An older torch, or a server that the script has started, is no error."""
    monkeypatch.setenv(SOCKET, "/run/0.torch")
    module = sys.modules["torch._C._distributed_c10d"]

    def exists(path):
        raise RuntimeError(f"{path} already exists")

    monkeypatch.setattr(module, "_WorkerServer", exists)
    assert ragent.observe() is False
    monkeypatch.delattr(module, "_WorkerServer")
    assert ragent.observe() is False


def test_records_of_the_script(servers, monkeypatch):
    """The path for records that the script gives by the older name is used: the agent's own choice is removed."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/logs/attempt_0/3/error.json")
    monkeypatch.setenv(RECORDS, "/logs/attempt_0/nccl_trace_rank_")
    ragent.observe()
    assert RECORDS in os.environ
    monkeypatch.setenv(OLD_RECORDS, "/mine/rank_")
    ragent.observe()
    assert RECORDS not in os.environ
    monkeypatch.setenv(RECORDS, "/mine/new_rank_")
    ragent.observe()
    assert os.environ[RECORDS] == "/mine/new_rank_"


FORKS = """
import os, sys
import ragent
assert ragent.observe()
if os.fork() == 0:
    sys.exit()
assert os.wait()[1] == 0
sys.exit(7)
"""


def test_end_of_a_forked_process(tmp_path):
    """The end of a forked process does not end the server of its parent, and the parent ends as usual."""
    needs("torch")
    environment = dict(os.environ, PYTHONPATH=str(PACKAGE.parent), **{SOCKET: str(tmp_path / "0.torch")})
    end = subprocess.run([sys.executable, "-c", FORKS], env=environment, stderr=subprocess.PIPE, timeout=300)
    assert end.returncode == 7, end.stderr
