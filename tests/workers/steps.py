#!/usr/bin/env python3
"""Runs the orders that it reads, line by line, from the pipe $SCRATCH/orders.$RANK, as Python. `report` sends a datagram
to the agent. `saved` reports a checkpoint. `notice` prints the notice of this node."""

import json
import os
import socket
import sys
import time

rank = os.environ["RANK"]
numbers = {
    "rank": rank,
    "local_rank": os.environ["LOCAL_RANK"],
    "world_size": os.environ["WORLD_SIZE"],
    "pid": os.getpid(),
    "restart": os.environ["TORCHELASTIC_RESTART_COUNT"],
}
# One write, so that lines of several workers are not mixed.
os.write(1, f"worker {' '.join(f'{name}={number}' for name, number in numbers.items())}\n".encode())
agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def report(*lines):
    agent.sendto("\n".join(lines).encode(), os.environ["RAGENT_SOCKET"])


def saved(step, notice=0, whole=False):
    report(f"X_RAGENT_SAVED={step}", f"X_RAGENT_NOTICE={notice}", f"X_RAGENT_SAVED_WHOLE={int(whole)}")


def notice(number=0):
    """Prints the notice of this node. Waits for it, if its number is given."""
    while True:
        try:
            with open(os.environ["RAGENT_NOTICE_FILE"]) as file:
                text = file.read()
            if json.loads(text)["notice"] >= number:
                return print("notice", text)
        except FileNotFoundError:
            if number == 0:
                return print("no notice")
        time.sleep(0.01)


# Opened in both directions, so that it never ends.
with os.fdopen(os.open(f"{os.environ['SCRATCH']}/orders.{rank}", os.O_RDWR)) as orders:
    for order in orders:
        exec(order)
        sys.stdout.flush()
        sys.stderr.flush()
