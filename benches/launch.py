"""Measures the launch of a job that does nothing: time from start to exit, and peak memory."""

import os
import subprocess
import threading
import time
from pathlib import Path

# A launch takes two seconds at most, with torchrun on a busy machine.
TIMEOUT_S = 60
JOB = ["--standalone", "--nproc-per-node", "1", "--no-python", "true"]


def wall_ms(launcher):
    """Returns the milliseconds from the start of `launcher` until it has exited."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    start = time.perf_counter_ns()
    pid = os.posix_spawn(launcher, [launcher, *JOB], os.environ, file_actions=quiet)
    # Waiting blocks, so that only the launch itself is measured.
    watchdog = threading.Timer(TIMEOUT_S, os.kill, (pid, 9))
    watchdog.start()
    _, status = os.waitpid(pid, 0)
    taken = time.perf_counter_ns() - start
    watchdog.cancel()
    if status != 0:
        raise RuntimeError(f"`{launcher}` ended with status {status}")
    return taken / 1e6


def peak_mb(launcher):
    """Returns the peak resident memory of the launcher, and of all its own processes together.

    The kernel keeps the peak of each process only until the process ends; so it is read repeatedly
    until then. Workers do not count.
    """
    process = subprocess.Popen([launcher, *JOB], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peaks = {}
    deadline = time.monotonic() + TIMEOUT_S
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        for pid in [process.pid, *keepers_of(process.pid)]:
            if peak := peak_kb(pid):
                peaks[pid] = peak
        if time.monotonic() > deadline:
            process.kill()
    if process.wait() != 0:
        raise RuntimeError(f"`{launcher}` ended with {process.returncode}")
    return peaks[process.pid] / 1000, sum(peaks.values()) / 1000


def keepers_of(pid):
    """Returns the keepers of an agent."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children
                if b"__keeper" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")]
    except OSError:  # One of them has just ended.
        return []


def peak_kb(pid):
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None  # It has just ended.
