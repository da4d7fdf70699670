"""`ragent.step`: reports that cost little, and never fail because of the agent."""

import os
import socket
import threading

import pytest

import ragent


@pytest.fixture
def agent(sandbox, monkeypatch):
    """The socket of an agent, as a worker finds it."""
    path = str(sandbox.temporary / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(path)
        agent.settimeout(60)
        monkeypatch.setenv("RAGENT_SOCKET", path)
        yield agent


class Count:
    """A number of another type, as numpy has them."""

    def __index__(self):
        return 7


def test_reports(agent):
    """A report is one datagram with the step, and the number of all steps if it is given."""
    for n, options, text in [
        (0, {}, "X_RAGENT_STEP=0"),
        (120, {"total": 1000}, "X_RAGENT_STEP=120\nX_RAGENT_STEPS=1000"),
        (2**53 - 1, {"total": Count()}, f"X_RAGENT_STEP={2**53 - 1}\nX_RAGENT_STEPS=7"),
    ]:
        assert ragent.step(n, **options) is None
        assert agent.recv(4096).decode() == text


@pytest.mark.parametrize(("n", "options", "what"), [(-1, {}, "step -1"), (2**53, {}, f"step {2**53}"), (1, {"total": -1}, "total -1")])
@pytest.mark.parametrize("has_agent", [True, False])
def test_wrong_numbers(agent, monkeypatch, n, options, what, has_agent):
    """A number out of range is an error, also without an agent."""
    if not has_agent:
        monkeypatch.delenv("RAGENT_SOCKET")
    with pytest.raises(ValueError, match=f"failed to report a training step: {what} is not a whole number"):
        ragent.step(n, **options)


@pytest.mark.parametrize(("n", "options"), [(1.0, {}), ("1", {}), (None, {}), (1, {"total": 2.5})])
def test_wrong_types(agent, n, options):
    """A value that is not a whole number is an error."""
    with pytest.raises(TypeError, match="failed to report a training step"):
        ragent.step(n, **options)


def test_no_agent(monkeypatch, tmp_path):
    """Without an agent, or with one that has ended, a report does nothing."""
    for path in (None, "", str(tmp_path / "missing"), "x" * 500):
        monkeypatch.delenv("RAGENT_SOCKET", raising=False)
        if path is not None:
            monkeypatch.setenv("RAGENT_SOCKET", path)
        ragent.step(1)


def test_agent_that_does_not_read(agent):
    """A report is skipped, and does not wait, if the agent does not take it."""
    for n in range(5000):
        ragent.step(n)
    assert agent.recv(4096) == b"X_RAGENT_STEP=0"


def test_variable_that_changes(agent, monkeypatch, sandbox):
    """The variable is read for each report, since a standby has it only once it is a worker."""
    ragent.step(1)
    monkeypatch.delenv("RAGENT_SOCKET")
    ragent.step(2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(sandbox.temporary / "other"))
        monkeypatch.setenv("RAGENT_SOCKET", str(sandbox.temporary / "other"))
        ragent.step(3)
        other.settimeout(60)
        assert other.recv(100) == b"X_RAGENT_STEP=3"
    assert agent.recv(100) == b"X_RAGENT_STEP=1"


def test_fork(agent):
    """A forked process that has closed all descriptors, as daemons do, does not write into another file."""
    ragent.step(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.dup2(writer, 1)
            os.closerange(3, 100)
            pair = [end for _ in range(30) for end in socket.socketpair()]
            ragent.step(2)
            code = int(any(_has_data(end) for end in pair))
        finally:
            os._exit(code)
    os.close(reader)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    assert [agent.recv(100) for _ in range(2)] == [b"X_RAGENT_STEP=1", b"X_RAGENT_STEP=2"]


def _has_data(end):
    end.setblocking(False)
    try:
        return bool(end.recv(100))
    except BlockingIOError:
        return False


def test_threads(agent):
    """Several threads may report at the same time."""
    received = set()

    def read():
        while len(received) < 400:
            received.add(agent.recv(100))

    reader = threading.Thread(target=read)
    reader.start()

    def report(first):
        for n in range(first, first + 100):
            # A report is skipped while the queue is full.
            while f"X_RAGENT_STEP={n}".encode() not in received and reader.is_alive():
                ragent.step(n)

    threads = [threading.Thread(target=report, args=(first,)) for first in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    for thread in [*threads, reader]:
        thread.join(60)
    assert len(received) == 400


def test_script_without_an_agent(sandbox):
    """A script that reports its steps runs unchanged without an agent."""
    code = "import ragent\nfor n in range(3):\n    ragent.step(n, total=3)\nprint('done')"
    assert sandbox.run(code).succeeds().stdout == "done\n"
