"""A worker that writes facts about itself: a file for each attempt and rank, a line on stdout and on stderr.

Then it runs the Python code in ACT. It does not import torch.
"""

import json
import os
import signal
import sys

rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def mask(name):
    """The signals of a set, except the two that are reserved by libc."""
    with open("/proc/self/status") as status:
        text = next(line.split()[1] for line in status if line.startswith(name))
    return [number for number in range(1, 65) if int(text, 16) >> (number - 1) & 1 and number not in (32, 33)]


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass  # The descriptor of the listing, closed by now.
    return sorted(name for name in found if int(name) > 2)


def say(line, number=1):
    """Writes a line with a single write, so that lines of several workers do not mix."""
    os.write(number, f"{line}\n".encode())


def tell():
    umask = os.umask(0)
    os.umask(umask)
    facts = {
        "argv": sys.argv,
        "interpreter": sys.executable,
        "unbuffered": sys.stdout.write_through,
        "name": __name__,
        "cwd": os.getcwd(),
        "is_session_leader": os.getsid(0) == os.getpid(),
        "is_group_leader": os.getpgrp() == os.getpid(),
        "ignored": mask("SigIgn"),
        "blocked": mask("SigBlk"),
        "umask": umask,
        "cpus": sorted(os.sched_getaffinity(0)),
        "descriptors": descriptors(),
        "environment": dict(os.environ),
    }
    path = os.path.join(os.environ["FACTS"], f"{attempt}.{rank}.{os.environ['LOCAL_RANK']}")
    with open(path + ".part", "w") as file:
        json.dump(facts, file)
    os.rename(path + ".part", path)
    say(f"out@{attempt}.{rank}")
    say(f"err@{attempt}.{rank}", 2)


def wait():
    """Announces itself, and waits for a signal.

    `signal.pause` would miss a signal that comes just before it: its handler would never run. The pipe keeps a byte for each.
    """
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    with open(os.environ["READY"], "w") as ready:
        ready.write(f"{rank}\n")
    while True:
        os.read(signals, 1)


def meet():
    """Rank 0 waits until all other ranks of this attempt have called this. The others do not wait."""
    path = f"{os.environ['READY']}.{attempt}"
    try:
        os.mkfifo(path)
    except FileExistsError:
        pass
    if rank > 0:
        with open(path, "wb") as pipe:
            pipe.write(b".")
        return
    # In both directions, so that it does not end between two of them.
    pipe = os.open(path, os.O_RDWR)
    for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
        os.read(pipe, 1)


def catch(*names):
    """Writes the first of these signals to a file, and exits with 0."""

    def note(number, _frame):
        with open(os.path.join(os.environ["FACTS"], f"signal.{rank}"), "a") as file:
            file.write(signal.Signals(number).name + "\n")
        os._exit(0)

    for name in names:
        signal.signal(getattr(signal, name), note)


def die(name):
    os.kill(os.getpid(), getattr(signal, name))
    signal.pause()


tell()
exec(os.environ.get("ACT", ""))
