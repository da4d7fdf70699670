#!/usr/bin/env python3
"""Replaces itself by the program that its arguments name, like `exec` in a shell, so that any fake worker
can be started from a standby.

The process stays the same, with its parent, session, signals and streams. If it was started from a
standby, it adds a line to $SCRATCH/standbys.used.
"""

import os
import signal
import sys

# Only standbys import this module before the script runs.
if "decimal" in sys.modules:
    with open(f"{os.environ['SCRATCH']}/standbys.used", "a") as used:
        print(f"rank={os.environ['RANK']} pid={os.getpid()}", file=used)
# Python ignores these signals; the program would inherit their disposition.
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(ignored, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
