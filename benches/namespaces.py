"""Connects network namespaces through a bridge: a machine of its own for each agent of a measurement. Needs root."""

import contextlib
import os
import subprocess

NODES = 3
PREFIX = f"rv{os.getpid()}"


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def in_node(node, *words):
    return ["ip", "netns", "exec", f"{PREFIX}n{node}", *words]


@contextlib.contextmanager
def network():
    """Makes the namespaces. Node 1 has the address 10.78.0.1, and so on."""
    hub = f"{PREFIX}hub"
    made = []
    try:
        for name in (hub, *(f"{PREFIX}n{node}" for node in range(1, NODES + 1))):
            run("ip", "netns", "add", name)
            made.append(name)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for node in range(1, NODES + 1):
            name = f"{PREFIX}n{node}"
            run("ip", "-n", hub, "link", "add", f"port{node}", "type", "veth",
                "peer", "name", "eth0", "netns", name)
            run("ip", "-n", hub, "link", "set", f"port{node}", "master", "bridge", "up")
            run("ip", "-n", name, "address", "add", f"10.78.0.{node}/16", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in made:
            run("ip", "netns", "delete", name)
