#!/usr/bin/env python3
"""Takes the picture of the page for the documentation, of a job whose worker was killed and which another node has joined.

    .venv/bin/python scripts/picture-page.py --ragent target/release/ragent docs/page.png

Needs Chromium (scripts/setup-packages.sh), and root for a network and for the names of the nodes.
"""

import argparse
import base64
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRAIN = ROOT / "examples" / "digits" / "train.py"
BROWSER = "chromium-headless-shell"
SIZE = "1200,700"
# The seconds for which the job runs after its last restart.
RUNS_S = 25
# An address of a network that has only this machine: nodes with different names cannot have a loopback address.
ADDRESS = "10.77.0.1"
PORT = 29400
IS_INSIDE = "PICTURE_PAGE_INSIDE"
DEADLINE_S = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default="target/release/ragent", metavar="PATH")
    parser.add_argument("picture", metavar="PNG")
    args = parser.parse_args()
    if IS_INSIDE not in os.environ:
        os.environ[IS_INSIDE] = "1"
        script = f'ip link set lo up && ip address add {ADDRESS}/32 dev lo && exec "$0" "$@"'
        os.execvp("unshare", ["unshare", "--net", "sh", "-c", script, sys.executable, *sys.argv])
    agents = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in ("n0", "n1", "n2"):
                agents.append(start(args.ragent, name, folder))
            wait(lambda status: status["world_size"] == 6 and status["progress"])
            os.kill(a_worker(agents[1].pid), signal.SIGKILL)
            wait(lambda status: status["round"] == 2 and status["progress"])
            agents.append(start(args.ragent, "n3", folder))
            wait(lambda status: status["world_size"] == 8 and status["progress"])
            time.sleep(RUNS_S)
            take(f"http://{ADDRESS}:{PORT}/", folder, args.picture)
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.wait()


def start(ragent, name, folder):
    """Starts an agent on a machine of this name."""
    command = [
        str(pathlib.Path(ragent).resolve()), "--nnodes", "3:4", "--nproc-per-node", "2", "--rdzv-id", "digits",
        "--rdzv-endpoint", f"{ADDRESS}:{PORT}", "--max-restarts", "3", "--local-addr", ADDRESS,
        "--rdzv-conf", "last_call_timeout=1,join_settle=0.2,voters=1", "--standby",
        str(TRAIN), "--epochs", "1000", "--seconds-per-epoch", "1", "--folder", str(folder),
    ]
    environment = os.environ | {"PYTHON_EXEC": sys.executable, "PYTHONPATH": str(ROOT / "packaging" / "python"), "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    script = f'hostname {name} && exec "$0" "$@"'
    with open(f"{folder}/{name}.log", "w") as log:
        return subprocess.Popen(["unshare", "--uts", "sh", "-c", script, *command], env=environment, stdout=log, stderr=log)


def a_worker(agent):
    """Returns the process id of a worker below an agent."""
    waiting = [agent]
    for process in waiting:
        children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
        for child in map(int, children):
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if any(variable.startswith(b"LOCAL_RANK=") for variable in environment):
                return child
            waiting.append(child)
    sys.exit("error: the agent has no worker")


def wait(condition):
    """Waits until the status of the job fulfils a condition."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{ADDRESS}:{PORT}/status", timeout=5) as answer:
                status = json.load(answer)
            if status["phase"] == "running" and condition(status):
                return
        except (OSError, urllib.error.URLError, ValueError):
            pass
        time.sleep(0.2)
    sys.exit("error: the job has not started in time")


def take(url, folder, picture):
    """Takes the picture when the page has received the state of the job."""
    their_input, to = os.pipe()
    answers, their_output = os.pipe()
    command = [
        BROWSER, "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}/chromium",
        f"--window-size={SIZE}",
    ]
    script = f'exec "$0" "$@" 3<&{their_input} 4>&{their_output}'
    browser = subprocess.Popen(
        ["sh", "-c", script, *command], pass_fds=(their_input, their_output), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    os.close(their_input)
    os.close(their_output)
    try:
        with open(to, "wb") as requests, open(answers, "rb") as answers:
            page = Page(requests, answers)
            page.call("Page.navigate", url=url)
            is_live = "document.getElementById('live')?.textContent === 'live'"
            deadline = time.monotonic() + DEADLINE_S
            while not page.call("Runtime.evaluate", expression=is_live)["result"].get("value"):
                if time.monotonic() > deadline:
                    sys.exit("error: the page has received no state")
                time.sleep(0.2)
            data = page.call("Page.captureScreenshot")["data"]
        pathlib.Path(picture).write_bytes(base64.b64decode(data))
    finally:
        browser.kill()
        browser.wait()


class Page:
    """A page of a browser, by the debugging protocol: JSON messages that end with NUL."""

    def __init__(self, requests, answers):
        self.requests, self.answers, self.count, self.session = requests, answers, 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **params):
        """Calls a method, and returns its result."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.requests.write(json.dumps(message).encode() + b"\0")
        self.requests.flush()
        while True:
            text = b""
            while not text.endswith(b"\0"):
                byte = self.answers.read(1)
                if not byte:
                    sys.exit("error: the browser has ended")
                text += byte
            answer = json.loads(text[:-1])
            if answer.get("id") == self.count:
                if "error" in answer:
                    sys.exit(f"error: {method}: {answer['error']}")
                return answer["result"]


if __name__ == "__main__":
    main()
