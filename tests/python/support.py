"""Processes of tests, whose output is read as it arrives."""

import importlib
import json
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
PROGRAM = pathlib.Path(os.environ.get("RAGENT_PROGRAM") or REPOSITORY / "target/debug/ragent").absolute()
PACKAGE = REPOSITORY / "packaging/python/ragent"
# The seconds after which an expected event counts as missing.
DEADLINE = 300
# A uid that is neither root's nor that of these tests.
OTHER_USER = 12002


# The begin of a script of several ranks, whose arguments are their sockets. They are forked after torch was imported, which takes seconds. A
# process that was forked after ragent was imported would have no memory.
BEGIN_OF_RANKS = """
import contextlib, copy, os, random, sys, warnings
with contextlib.suppress(ImportError):
    # Its random numbers are saved if it was imported.
    import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None
sockets = sys.argv[1:]
ranks, children = len(sockets), []
for rank, socket in enumerate(sockets):
    children.append(os.fork())
    if children[-1] == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), RAGENT_MEMORY_SOCKET=socket)
        break
else:
    sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))

import ragent.checkpoint as memory
warnings.simplefilter("error", RuntimeWarning)
dist.init_process_group("gloo")
"""

# The end of a script of several ranks. A thread of gloo may abort a process that ends in the usual way on a busy machine.
END_OF_RANK = """
dist.barrier()
dist.destroy_process_group()
print("done", flush=True)
os._exit(0)
"""


class Sandbox:
    """A folder with the package as `pip install --target` leaves it, and the processes that run there."""

    def __init__(self, path, marker):
        self.path = path
        self.site = path / "site"
        self.temporary = path / "tmp"
        self.work = path / "work"
        for folder in (self.site / "bin", self.temporary, self.work, path / "home", path / "run"):
            folder.mkdir(parents=True)
        shutil.copytree(PACKAGE, self.site / "ragent", ignore=shutil.ignore_patterns("__pycache__"))
        self.program = self.site / "bin/ragent"
        self.program.symlink_to(PROGRAM)
        self.marker = f"RAGENT_TEST={marker}"
        self.runs = []
        kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment.update(
            HOME=str(path / "home"),
            TMPDIR=str(self.temporary),
            XDG_RUNTIME_DIR=str(path / "run"),
            PYTHONPATH=str(self.site),
            PYTHONDONTWRITEBYTECODE="1",
            RAGENT_TEST=marker,
            # Resolving the names of this machine must not depend on the network.
            RES_OPTIONS="timeout:1 attempts:1",
        )

    def write(self, name, text):
        """Writes a script, and returns its path."""
        file = self.work / name
        file.write_text(textwrap.dedent(text))
        return str(file)

    def start(self, *command, env=None, python=sys.executable, **options):
        """Starts Python with these arguments. The first one is a script's text if it has several lines."""
        command = [str(word) for word in command]
        if "\n" in command[0]:
            command[0] = self.write("main.py", command[0])
        variables = {**self.environment, **(env or {})}
        run = Run([str(python), *command], env=variables, cwd=self.work, **options)
        self.runs.append(run)
        return run

    def run(self, *command, **options):
        """Runs Python with these arguments until it ends, and returns the run."""
        return self.start(*command, **options).finish()

    def processes(self):
        """Returns the command lines of all processes of this test, by process id."""
        found = {}
        for folder in pathlib.Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and self.marker in (folder / "environ").read_text(errors="replace").split("\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                continue
        return found

    def wait_until_nothing_left(self):
        """Waits until no process of this test is left."""
        wait_until(lambda: not self.processes(), lambda: f"processes are left: {self.processes()}")

    def close(self):
        """Checks that nothing is left."""
        try:
            for run in self.runs:
                run.check_ended()
            self.wait_until_nothing_left()
            left = [path.name for path in self.temporary.glob("ragent-*")]
            assert not left, f"temporary files are left: {left}"
        finally:
            for process in self.processes():
                os.kill(process, 9)


class AgentOfWorker:
    """The side of the agent for one worker: it gives notices, and reads reports as they arrive."""

    def __init__(self, folder):
        self.notice_file = folder / "notice.json"
        path = str(folder / "reports")
        self.environment = {"RAGENT_SOCKET": path, "RAGENT_NOTICE_FILE": str(self.notice_file)}
        self._reports = queue.Queue()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _read(self):
        while report := self._socket.recv(4096):
            self._reports.put(report.decode())

    def give(self, notice):
        """Replaces the file of notices, whole. Bytes are its content, another value is written as JSON."""
        text = notice if isinstance(notice, bytes) else json.dumps(notice).encode()
        draft = self.notice_file.with_suffix(".new")
        draft.write_bytes(text)
        draft.replace(self.notice_file)

    def next(self):
        """Waits for the next report."""
        return self._reports.get(timeout=DEADLINE)

    def rest(self):
        """Returns the reports that nothing has waited for, of workers that have ended."""
        self.close()
        return list(self._reports.queue)

    def close(self):
        if self._reader.is_alive():
            # All others were sent before it.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", self.environment["RAGENT_SOCKET"])
            self._reader.join(DEADLINE)
        self._socket.close()


class Run:
    """A process, and what it prints."""

    def __init__(self, command, **options):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {**streams, **options}
        self.process = subprocess.Popen(command, text=True, errors="replace", **options)
        self.lines = {"stdout": [], "stderr": []}
        self._events = queue.Queue()
        self._seen = []
        self._readers = []
        for name in self.lines:
            if getattr(self.process, name) is not None:
                reader = threading.Thread(target=self._read, args=(name,), daemon=True)
                reader.start()
                self._readers.append(reader)

    def _read(self, name):
        for line in getattr(self.process, name):
            self.lines[name].append(line)
            self._events.put(line)

    @property
    def pid(self):
        return self.process.pid

    @property
    def code(self):
        return self.process.returncode

    @property
    def stdout(self):
        return "".join(self.lines["stdout"])

    @property
    def stderr(self):
        return "".join(self.lines["stderr"])

    def prints(self, text):
        """Waits for a line with this text, and returns it."""
        for line in self._seen:
            if text in line:
                return line
        end = time.monotonic() + DEADLINE
        while True:
            try:
                line = self._events.get(timeout=max(0.01, min(0.2, end - time.monotonic())))
            except queue.Empty:
                ended = self.process.poll() is not None and not any(reader.is_alive() for reader in self._readers)
                output = f"{self.stdout}\n{self.stderr}"
                assert not ended or not self._events.empty(), f"it ended with {self.code}, without {text!r}:\n{output}"
                assert time.monotonic() < end, f"no {text!r} in time:\n{output}"
                continue
            self._seen.append(line)
            if text in line:
                return line

    def finish(self):
        """Waits for the end, and returns itself."""
        self.process.wait(DEADLINE)
        for reader in self._readers:
            reader.join(DEADLINE)
        return self

    def succeeds(self):
        """Waits for the end, which must be a success."""
        self.finish()
        assert self.code == 0, f"exit code {self.code}:\n{self.stdout}\n{self.stderr}"
        return self

    def check_ended(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"a process was left running:\n{self.stdout}\n{self.stderr}")


def needs(module):
    """Skips the test if a module is missing. Under CI=true, fails instead."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{module} is missing: {error}", allow_module_level=True)


def free_port():
    """Returns a port of loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, message):
    """Waits until the condition is true. It is a state of the system, which sends no event."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, message()
        time.sleep(0.02)


class AgentOfMemory:
    """The side of the agent for checkpoints in memory of one node. It keeps the newest one of each kind."""

    def __init__(self, folder, name="memory"):
        self.path = str(folder / name)
        self.environment = {"RAGENT_MEMORY_SOCKET": self.path}
        self.requests = []
        # In place of its own answers: by the request's name, an object, bytes, or None to close the connection.
        self.answers = {}
        self.held = {}
        # What other ranks have saved, if this round has another number of ranks: by node, the contents of its workers.
        self.nodes = None
        self.is_first = False
        self._buffers = []
        self._filling = None
        self._lock = threading.Lock()
        self._connections = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def asked(self, name):
        """Returns the requests with this name."""
        return [request for request in self.requests if request["ask"] == name]

    def content(self, kind="state"):
        """Returns the bytes that are held."""
        held = self.held[kind]
        return os.pread(held["descriptor"], held["bytes"], 0)

    def replace(self, content, kind="state"):
        """Changes the bytes that are held."""
        self.held[kind]["bytes"] = len(content)
        os.ftruncate(self.held[kind]["descriptor"], max(len(content), 1))
        os.pwrite(self.held[kind]["descriptor"], content, 0)

    def close(self):
        for listener in [self._listener, *self._connections]:
            # Unlike closing it, this ends the wait of its thread.
            listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
        for each in [self._listener, *self._connections]:
            each.close()
        for buffer in self._buffers:
            os.close(buffer["descriptor"])

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._connections.append(connection)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        while packet := self._packet(connection):
            assert len(packet) <= 4096
            request = json.loads(packet)
            descriptors = []
            with self._lock:
                self.requests.append(request)
                if request["ask"] in self.answers:
                    answer = self.answers[request["ask"]]
                else:
                    answer, descriptors = getattr(self, "_" + request["ask"])(**request)
            if answer is None:
                connection.shutdown(socket.SHUT_RDWR)
                return
            text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            try:
                socket.send_fds(connection, [text], descriptors)
            except BrokenPipeError:
                # The worker has closed its end meanwhile.
                return
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _packet(self, connection):
        try:
            return connection.recv(4097)
        except ConnectionResetError:
            return None

    def _buffer(self, ask, step, bytes, kind, replicated):
        held = [each["buffer"] for each in self.held.values()]
        free = [buffer for buffer in self._buffers if buffer["buffer"] not in held and buffer["size"] >= bytes]
        if not free:
            descriptor = os.memfd_create("buffer")
            os.ftruncate(descriptor, bytes)
            free = [{"buffer": len(self._buffers), "size": bytes, "descriptor": descriptor}]
            self._buffers += free
        self._filling = {**free[0], "step": step, "kind": kind, "replicated": replicated}
        answer = {"buffer": free[0]["buffer"], "size": free[0]["size"], "waited": 0.0}
        return answer, [os.dup(free[0]["descriptor"])]

    def _saved(self, ask, step, bytes):
        filling, self._filling = self._filling, None
        assert filling["step"] == step and bytes <= filling["size"]
        self.held[filling["kind"]] = {**filling, "bytes": bytes}
        return {"taken": True}, []

    def _load(self, ask, kind):
        if self.nodes is not None and kind == "dcp":
            return self._resharded()
        held = self.held.get(kind)
        if held is None:
            return {"step": None}, []
        answer = {"step": held["step"], "bytes": held["bytes"], "replicated": held["replicated"]}
        return answer, [os.open(f"/proc/self/fd/{held['descriptor']}", os.O_RDONLY)]

    def _resharded(self):
        answer = {"step": 5, "resharded": True}
        if not self.is_first:
            return answer, []
        parts, first = [], 0
        for number, workers in enumerate(self.nodes):
            parts.append({"group_rank": number, "first_rank": first, "ranks": len(workers), "sources": [f"node{number}:1"]})
            first += len(workers)
        text = json.dumps(parts).encode()
        return {**answer, "bytes": len(text)}, [_file(text)]

    def _ranges(self, ask, step, group_rank, sources, ranges):
        assert step == 5 and sources == [f"node{group_rank}:1"]
        assert 1 <= len(ranges) <= 64 and sum(length for _, _, length in ranges) <= 64 << 20
        found = b""
        for worker, begin, length in ranges:
            assert length >= 1 and begin + length <= len(self.nodes[group_rank][worker])
            found += self.nodes[group_rank][worker][begin : begin + length]
        return {"bytes": len(found)}, [_file(found)]

    def _loaded(self, ask):
        return {"noted": True}, []

    def _newest(self, ask):
        return {"step": max((held["step"] for held in self.held.values()), default=None)}, []

    def _unusable(self, ask, step, reason):
        assert len(reason.encode()) <= 200 and "\n" not in reason
        return {"noted": True}, []


def _file(content):
    """Returns the descriptor of a file in memory."""
    descriptor = os.memfd_create("buffer")
    os.truncate(descriptor, len(content))
    os.pwrite(descriptor, content, 0)
    return descriptor
