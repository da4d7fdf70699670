#!/usr/bin/env python3
"""Writes each signal that it gets to the pipe $RECORDS. SIGHUP ends it with exit code 5.

`signals.py NAME family` also starts four descendants that do so: a child in its process group, one in a group of its own,
one in a session of its own, and a daemon.
"""

import os
import signal
import sys

SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT}
records = os.open(os.environ["RECORDS"], os.O_WRONLY)


def record(text):
    # One write, so that lines of several processes stay whole.
    os.write(records, f"{os.environ['SLURM_NODEID']} {text}\n".encode())


def serve(name):
    record(f"{name} pid={os.getpid()}")
    while True:
        # Of several pending signals, this takes the one with the lowest number.
        received = signal.Signals(signal.sigwait(SIGNALS))
        record(f"{name} {received.name}")
        if received == signal.SIGHUP:
            os._exit(5)


def start(name, prepare):
    if os.fork() == 0:
        prepare()
        serve(name)


def become_daemon():
    os.setsid()
    if os.fork() != 0:
        os._exit(0)


def main():
    name, *words = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if words == ["family"]:
        start(f"{name}.child", lambda: None)
        start(f"{name}.group", lambda: os.setpgid(0, 0))
        start(f"{name}.session", os.setsid)
        start(f"{name}.daemon", become_daemon)
    serve(name)


if __name__ == "__main__":
    main()
