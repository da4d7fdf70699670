#!/usr/bin/env python3
"""Sends a heartbeat and a status line to its service manager for each word that it reads from
$SCRATCH/beats.$RANK; between them it sleeps, or, after `spin`, loops without a pause."""

import os
import socket

rank = os.environ["RANK"]
print(f"worker rank={rank} pid={os.getpid()} restart={os.environ['TORCHELASTIC_RESTART_COUNT']} "
      f"watchdog={os.environ['WATCHDOG_USEC']}", flush=True)
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(os.environ["NOTIFY_SOCKET"])
# Opened in both directions, so that it never ends.
with os.fdopen(os.open(f"{os.environ['SCRATCH']}/beats.{rank}", os.O_RDWR)) as beats:
    while word := beats.readline().strip():
        manager.send(f"STATUS=step {word}\nWATCHDOG=1".encode())
        while word == "spin":
            pass
