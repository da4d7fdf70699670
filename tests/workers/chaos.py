#!/usr/bin/env -S python3 -IS
"""Does the same as chaos.sh, and keeps checkpoints in the memory of the agent.

It loads at its start, and then saves one step after another. Its file has a line more for each: `loaded=STEP rank=R master=M`
or `loaded=nothing`, `saving=STEP` before the agent takes the checkpoint, and `whole=STEP` for the newest one that is whole. A
block is one line over and over, with the step, the rank and the master of those who have saved it. With $1 = `replicated`, all
ranks have the same, without a rank. The behaviour of chaos.sh is $2.

It sends heartbeats if the agent wants them, until it gets SIGUSR1. It answers most notices, and then trains no more, unless the
job goes on: `answering=NOTICE step=STEP` is in its file before the agent learns that the step is saved. All ranks save the step
that the first one of them has written to $AGREED, but one in forty saves another step, and one in forty saves nothing.
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
reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
step = 0
silent, trains = threading.Event(), threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: silent.set())
trains.set()


def uptime():
    with open("/proc/uptime") as file:
        return file.read().split()[0]


def record(line):
    # One write for each line.
    os.write(history, f"{line}\n".encode())


def beat():
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    while True:
        record(uptime())
        if "NOTIFY_SOCKET" in env and not silent.is_set():
            try:
                manager.sendto(b"WATCHDOG=1", env["NOTIFY_SOCKET"])
            except OSError:
                pass  # The agent is frozen, or has ended.
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
    newest, _ = ask(ask="newest")
    if newest.get("step") is not None:
        record(f"whole={newest['step']}")


def report(*lines):
    reports.sendto("\n".join(lines).encode(), env["RAGENT_SOCKET"])


def train():
    """Loads, and then makes steps and saves them, until the agent ends the connection."""
    global step
    try:
        agent.connect(env["RAGENT_MEMORY_SOCKET"])
        step = load() or int(env.get("RAGENT_SAVED_STEP") or 0)
        while True:
            time.sleep(PAUSE)
            trains.wait()
            step += 1
            if step % 5 == 0:
                report(f"X_RAGENT_STEP={step}")
            # Of replicated steps, one rank of a node saves.
            if not replicated or env["LOCAL_RANK"] == "0":
                save(step)
    except (OSError, KeyError) as error:
        record(f"memory has ended: {error!r}")


def agreed(number):
    """Returns the step that all ranks save for a notice."""
    path = f"{env['AGREED']}/{env['MASTER_ADDR']}:{env['MASTER_PORT']}.{number}"
    draft = f"{path}.{env['RANK']}"
    with open(draft, "w") as file:
        file.write(str(step))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    with open(path) as file:
        return int(file.read())


def answer(number):
    chance = (int(env["MASTER_PORT"]) + number + int(env["RANK"])) % 40
    if chance == 0:
        return
    saved = agreed(number) + (chance == 1)
    record(f"answering={number} step={saved}")
    report(f"X_RAGENT_SAVED={saved}", f"X_RAGENT_NOTICE={number}")


def notices():
    """Answers each notice once."""
    number = 0
    while True:
        time.sleep(0.03)
        try:
            with open(env["RAGENT_NOTICE_FILE"]) as file:
                notice = json.load(file)
            if notice["notice"] > number:
                number = notice["notice"]
                if notice["kind"] != "save":
                    trains.clear()
                answer(number)
        except FileNotFoundError:
            # There is none, or it was withdrawn.
            trains.set()
        except (OSError, KeyError) as error:
            return record(f"notices have ended: {error!r}")


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
for work in (beat, train, notices):
    threading.Thread(target=work, daemon=True).start()
while not os.path.exists(f"{env['SCRATCH']}/done"):
    time.sleep(0.03)
os._exit(0)
