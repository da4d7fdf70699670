#!/usr/bin/env python3
"""The same as chaos.sh, as a program that can be started from a standby; the process in a session of its
own is chaos.sh."""

import os
import signal
import sys
import time

INTERVAL_S = 0.03


def main():
    started = uptime()
    environment = os.environ
    path = f"{environment['SCRATCH']}/history/{environment['MASTER_PORT']}.{os.getpid()}"
    facts = {
        "started": started,
        "agent": environment["AGENT"],
        "kind": "worker",
        "pid": os.getpid(),
        "keeper": os.getppid(),
        "run_id": environment["TORCHELASTIC_RUN_ID"],
        "master": f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}",
        "restart_count": environment["TORCHELASTIC_RESTART_COUNT"],
        "max_restarts": environment["TORCHELASTIC_MAX_RESTARTS"],
    }
    for name in ("rank", "local_rank", "group_rank", "world_size", "local_world_size", "group_world_size"):
        facts[name] = environment[name.upper()]
    # A line is written at once.
    with open(path, "a", buffering=1) as history:
        print(*(f"{name}={value}" for name, value in facts.items()), file=history)
        if sys.argv[1] == "stubborn":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_IGN)
        if sys.argv[1] == "family":
            orphan = ["setsid", "chaos.sh", "stubborn", "orphan"]
            os.posix_spawnp(orphan[0], orphan, {**environment, "KEEPER": str(os.getppid())})
        while True:
            time.sleep(INTERVAL_S)
            print(uptime(), file=history)


def uptime():
    """Returns the seconds since boot, from the clock that chaos.sh reads."""
    with open("/proc/uptime") as clock:
        return clock.read().split()[0]


if __name__ == "__main__":
    main()
