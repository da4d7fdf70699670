#!/usr/bin/env python3
"""Keeps checkpoints in the memory of the agent, and follows orders like steps.py: `load`, `save`, `newest`, `ask`.

It speaks the protocol by itself, without the module `ragent`. A block is one number over and over: its step and the rank that has
saved it. With the argument `loop`, it loads and then saves one step after another, until it is killed.
"""

import json
import mmap
import os
import socket
import sys
import time

rank = int(os.environ["RANK"])
SIZE = 1 << 20
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
agent.connect(os.environ["RAGENT_MEMORY_SOCKET"])


def tell(*words):
    # One write, so that lines of several workers are not mixed.
    os.write(1, f"rank={rank} {' '.join(map(str, words))}\n".encode())


def ask(**request):
    """Returns the answer of the agent, and its descriptor."""
    agent.send(json.dumps(request).encode())
    packet, descriptors, _, _ = socket.recv_fds(agent, 4096, 1)
    if not packet:
        sys.exit("the agent has closed the connection")
    return json.loads(packet), descriptors[0] if descriptors else None


def word(step, of):
    return (step << 16 | of).to_bytes(8, "little")


def save(step, size=SIZE, replicated=False, pause=0.0, announced=False):
    answer, descriptor = ask(ask="buffer", step=step, bytes=size, kind="state", replicated=replicated)
    if "refused" in answer:
        return tell("refused", answer["refused"])
    if announced:
        tell(f"filling={step}")
    with mmap.mmap(descriptor, answer["size"]) as memory:
        os.close(descriptor)
        half = size // 16 * 8
        memory[:half] = word(step, rank) * (half // 8)
        time.sleep(pause)
        memory[half:size] = word(step, rank) * ((size - half) // 8)
    answer, _ = ask(ask="saved", step=step, bytes=size)
    tell(f"saved={step}" if "taken" in answer else answer)


def load(kind="state"):
    answer, descriptor = ask(ask="load", kind=kind)
    if answer["step"] is None:
        tell("loaded=nothing")
        return None
    with mmap.mmap(descriptor, answer["bytes"], access=mmap.ACCESS_READ) as memory:
        os.close(descriptor)
        first = memory[:8]
        if memory[:] != first * (answer["bytes"] // 8):
            tell("torn")
            sys.exit(99)
    step, of = divmod(int.from_bytes(first, "little"), 1 << 16)
    if step != answer["step"]:
        tell(f"mixed: step {step} in {answer['step']}")
        sys.exit(99)
    tell(f"loaded={step} of={of}")
    return step


def newest():
    tell(f"newest={ask(ask='newest')[0]['step']}")


if sys.argv[1:] == ["loop"]:
    step = load() or 0
    while True:
        step += 1
        save(step, 4 * SIZE, announced=True)
else:
    tell(f"pid={os.getpid()} restart={os.environ['TORCHELASTIC_RESTART_COUNT']}")
    # Opened in both directions, so that it never ends.
    with os.fdopen(os.open(f"{os.environ['SCRATCH']}/orders.{rank}", os.O_RDWR)) as orders:
        for order in orders:
            exec(order)
            sys.stdout.flush()
            sys.stderr.flush()
