#!/usr/bin/env python3
"""Runs the orders that it reads, line by line, from the pipe $SCRATCH/orders.$RANK, as Python. `report` sends a datagram
to the agent. `saved` reports a checkpoint. `notice` prints the notice of this node."""

import os
import socket
import sys

rank = os.environ["RANK"]
print(f"worker rank={rank} pid={os.getpid()} restart={os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def report(*lines):
    agent.sendto("\n".join(lines).encode(), os.environ["RAGENT_SOCKET"])


def saved(step, notice=0, whole=False):
    report(f"X_RAGENT_SAVED={step}", f"X_RAGENT_NOTICE={notice}", f"X_RAGENT_SAVED_WHOLE={int(whole)}")


def notice():
    try:
        with open(os.environ["RAGENT_NOTICE_FILE"]) as file:
            print("notice", file.read())
    except FileNotFoundError:
        print("no notice")


# Opened in both directions, so that it never ends.
with os.fdopen(os.open(f"{os.environ['SCRATCH']}/orders.{rank}", os.O_RDWR)) as orders:
    for order in orders:
        exec(order)
        sys.stdout.flush()
        sys.stderr.flush()
