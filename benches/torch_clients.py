"""Runs four processes with real clients of torch on several stores in turn.

    torch_clients.py ADDRESS ...

For each line `N SECONDS` on standard input, all of them use store N for that time; the number of
operations is printed as a line of JSON. It ends with its input.
"""

import json
import os
import sys
import time
from multiprocessing import Pipe

import torch.distributed as dist

CLIENTS = 4
PART = 10  # operations between two checks of the time


def main():
    pipes = [start(n, sys.argv[1:]) for n in range(CLIENTS)]
    print("ready", flush=True)
    for line in sys.stdin:
        for pipe in pipes:
            pipe.send(line)
        counts, seconds = zip(*[pipe.recv() for pipe in pipes])
        print(json.dumps({"ops": sum(counts), "ops_per_s": sum(counts) / max(seconds)}), flush=True)


def start(n, addresses):
    ours, theirs = Pipe()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    stores = [client(address) for address in addresses]
    try:
        while True:
            index, seconds = theirs.recv().split()
            theirs.send(use(stores[int(index)], f"bench/{n}", float(seconds)))
    except EOFError:
        os._exit(0)


def client(address):
    host, port = address.split(":")
    return dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)


def use(store, key, seconds):
    """Sets, gets, adds and checks. `get` sends a separate request to wait first."""
    begin = time.monotonic()
    count = 0
    while time.monotonic() < begin + seconds:
        for _ in range(PART):
            store.set(key, "value")
            store.get(key)
            store.add("bench/count", 1)
            store.check([key])
            count += 4
    return count, time.monotonic() - begin


if __name__ == "__main__":
    main()
