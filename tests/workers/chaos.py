#!/usr/bin/env -S python3 -IS
"""Does the same as chaos.sh, and keeps checkpoints in the memory of the agent.

It loads at its start, and then saves one step after another. Its file has a line more for each: `loaded=STEP rank=R master=M`
or `loaded=nothing`, and `saving=STEP` before the agent takes the checkpoint. A block is one line over and over, with the step,
the rank and the master of those who have saved it. With $1 = `replicated`, all ranks have the same, without a rank. The behaviour
of chaos.sh is $2.
"""

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time

SIZE = 1 << 18
PAUSE = 0.1
env = os.environ
replicated = sys.argv[1] == "replicated"


def uptime():
    with open("/proc/uptime") as file:
        return file.read().split()[0]


def record(line):
    # One write for each line.
    os.write(history, f"{line}\n".encode())


def beat():
    while True:
        record(uptime())
        time.sleep(0.03)


def ask(**request):
    """Returns the answer of the agent, and its descriptor."""
    agent.send(json.dumps(request).encode())
    packet, descriptors, _, _ = socket.recv_fds(agent, 4096, 1)
    if not packet:
        raise ConnectionError("the agent has closed the connection")
    return json.loads(packet), descriptors[0] if descriptors else None


def block(step):
    rank = "all" if replicated else env["RANK"]
    line = f"step={step} rank={rank} master={env['MASTER_ADDR']}:{env['MASTER_PORT']}\n".encode()
    return (line * (SIZE // len(line) + 1))[:SIZE]


def load():
    answer, descriptor = ask(ask="load", kind="state")
    if answer["step"] is None:
        record("loaded=nothing")
        return 0
    with mmap.mmap(descriptor, answer["bytes"], access=mmap.ACCESS_READ) as memory:
        os.close(descriptor)
        content = memory[:]
    line = content[: content.find(b"\n") + 1]
    facts = dict(word.split("=") for word in line.decode(errors="replace").split())
    whole = (line * (SIZE // max(len(line), 1) + 1))[:SIZE]
    if content != whole or facts.get("step") != str(answer["step"]):
        record(f"torn={answer['step']}")
        return answer["step"]
    record(f"loaded={facts['step']} rank={facts['rank']} master={facts['master']}")
    return answer["step"]


def save(step):
    answer, descriptor = ask(ask="buffer", step=step, bytes=SIZE, kind="state", replicated=replicated)
    if "refused" in answer:
        return
    with mmap.mmap(descriptor, answer["size"]) as memory:
        os.close(descriptor)
        memory[:SIZE] = block(step)
    record(f"saving={step}")
    ask(ask="saved", step=step, bytes=SIZE)


def train():
    """Loads and saves until the agent ends the connection."""
    try:
        agent.connect(env["RAGENT_MEMORY_SOCKET"])
        step = load()
        # Of replicated steps, one rank of a node saves.
        while not replicated or env["LOCAL_RANK"] == "0":
            time.sleep(PAUSE)
            step += 1
            save(step)
    except (OSError, KeyError) as error:
        record(f"memory has ended: {error!r}")


history = os.open(f"{env['SCRATCH']}/history/{env['MASTER_PORT']}.{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
facts = {
    "started": uptime(),
    "agent": env["AGENT"],
    "kind": "worker",
    "pid": os.getpid(),
    "keeper": os.getppid(),
    "run_id": env["TORCHELASTIC_RUN_ID"],
    **{name.lower(): env[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")},
    **{name.lower(): env[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")},
    "master": f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
    "restart_count": env["TORCHELASTIC_RESTART_COUNT"],
    "max_restarts": env["TORCHELASTIC_MAX_RESTARTS"],
}
record(" ".join(f"{name}={value}" for name, value in facts.items()))
if sys.argv[2] == "stubborn":
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
if sys.argv[2] == "family":
    keeper = {**env, "KEEPER": str(os.getppid())}
    subprocess.Popen(["setsid", "chaos.sh", "stubborn", "orphan"], env=keeper)
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
threading.Thread(target=beat, daemon=True).start()
threading.Thread(target=train, daemon=True).start()
while not os.path.exists(f"{env['SCRATCH']}/done"):
    time.sleep(0.03)
os._exit(0)
