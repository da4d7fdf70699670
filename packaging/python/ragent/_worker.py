"""Runs a function in the process of a worker.

It is started as a script and imports nothing of this package, whose folder need not be in its path:
`python .../ragent/_worker.py FOLDER`.
"""

from __future__ import annotations

import os
import pickle
import stat
import sys
from typing import Any, BinaryIO, Callable, Dict, List, Tuple

CALL = "call"
"""The file in the folder with the state of the launching process, the function and its arguments."""

_RESULT = "result-"
# Variables that are the same on all workers of a node in a round. In another round at least one of them differs, unless
# all workers have the same ranks as before.
_ROUND = ("GROUP_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


def main() -> None:
    """Calls the function, and stores its value."""
    folder = sys.argv[1]
    reports = os.environ.get("RAGENT_SOCKET")
    # The folder of this script, which the interpreter has added.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    import faulthandler

    faulthandler.enable(all_threads=True)
    try:
        _store(folder, _call(folder))
    except Exception as error:
        _record(error)
        sys.exit(1)
    if reports:
        _wait_for_others(reports)


def _call(folder: str) -> Any:
    from multiprocessing import process, spawn

    with _open_private(os.path.join(folder, CALL)) as file:
        preparation: Dict[str, Any] = pickle.load(file)
        # A script that launches a job while it is imported is reported as by multiprocessing.
        current: Any = process.current_process()
        current._inheriting = True
        try:
            spawn.prepare(preparation)
            call: Tuple[Callable[..., Any], Tuple[Any, ...]] = pickle.load(file)
        finally:
            del current._inheriting
    function, args = call
    try:
        return function(*args)
    except SystemExit as end:
        if end.code in (None, 0):
            return None
        raise


def _wait_for_others(reports: str) -> None:
    """Waits until the functions of all workers of this node have returned.

    A worker that ends earlier would break the last collectives of the others.
    """
    import socket

    own = reports + ".held"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as answer:
            if os.path.exists(own):
                os.unlink(own)
            # Only this user may send to it.
            os.fchmod(answer.fileno(), 0o600)
            answer.bind(own)
            answer.sendto(b"X_RAGENT_RETURNED=1", reports)
            answer.recv(1)
    except OSError:
        # The agent is gone, and ends this process.
        pass


def _store(folder: str, value: Any) -> None:
    rank = os.environ["RANK"]
    try:
        pickled = _pickled(value)
    except Exception as error:
        raise TypeError(
            f"failed to return a value of type `{type(value).__name__}` on rank {rank}: it cannot be pickled: {error}; return "
            "a value that can be pickled"
        ) from error
    path = os.path.join(folder, _RESULT + rank)
    write_private(path, pickle.dumps([os.environ.get(name) for name in _ROUND]) + pickled)


def write_private(path: str, text: bytes) -> None:
    """Writes a file that only this user can read, and gives it its name when it is complete."""
    draft = f"{path}.{os.getpid()}~"
    # A link in its place is not followed.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(text)
    os.replace(draft, path)


def _open_private(path: str) -> BinaryIO:
    """Opens a file to unpickle, which runs code.

    Where other users may write to the folder for temporary files, they may put a folder of theirs in the place of this one. But
    they cannot make a file of this user.
    """
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    about = os.fstat(file.fileno())
    is_own = about.st_uid == os.geteuid() and about.st_nlink == 1
    if not is_own or not stat.S_ISREG(about.st_mode) or about.st_mode & 0o022:
        file.close()
        raise PermissionError(
            f"failed to read `{path}`: another user may have written it: its owner is uid {about.st_uid}, its mode "
            f"{stat.filemode(about.st_mode)}, its number of links {about.st_nlink}, and this process has uid {os.geteuid()} "
            "(NFS and file systems without owners change owners and modes); set TMPDIR to a local folder of this user"
        )
    return file


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:
        cloudpickle = sys.modules.get("cloudpickle")
        if cloudpickle is None:
            raise
        pickled: bytes = cloudpickle.dumps(value)
        return pickled


def _record(error: Exception) -> None:
    """Prints the exception, and writes it to the worker's error file in torch's format."""
    import json
    import time
    import traceback

    # Without the frame of `main`.
    trace = error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, trace and trace.tb_next))
    sys.stderr.write(text)
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file:
        extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
        message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
        with open(file, "w", encoding="utf-8") as stream:
            json.dump({"message": message}, stream)


def read_results(folder: str) -> Dict[int, Any]:
    """Returns the values of the newest round by global rank."""
    paths = [entry.path for entry in os.scandir(folder) if entry.name.startswith(_RESULT) and not entry.name.endswith("~")]
    # Each round ends before the next one begins, so the round of the newest file is the last one.
    paths.sort(key=lambda path: os.stat(path).st_mtime_ns, reverse=True)
    values: Dict[int, Any] = {}
    newest: List[Any] = []
    for path in paths:
        rank = int(os.path.basename(path)[len(_RESULT) :])
        with _open_private(path) as file:
            round_of_file = pickle.load(file)
            newest = newest or round_of_file
            if round_of_file != newest:
                continue
            try:
                values[rank] = pickle.load(file)
            except Exception as error:
                raise RuntimeError(
                    f"failed to read the value that rank {rank} has returned: it cannot be unpickled: {error}; return a value "
                    "of a type that this process can import"
                ) from error
    return dict(sorted(values.items()))


if __name__ == "__main__":
    main()
