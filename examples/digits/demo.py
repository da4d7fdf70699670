"""Breaks a training job on purpose, and measures the time until ragent has it running again.

Three agents on loopback act as three nodes, and elect the one that coordinates. A worker of B is
killed, C joins, B itself is killed and returns, the agent that coordinates is killed with all its
processes, and the training completes. A second job loses two agents with a notice, and a third
one, which goes on from memory, a worker and an agent. The same training without failures ends with the
same accuracy. If a step fails, the demo names it and exits with 1. It ends every process that it
started, takes seven minutes at most, and needs only the standard library (train.py needs torch).

The agents hold standbys: interpreters that have imported torch, and become the workers of the next
round. They are used up by each round, so the demo waits for new ones before it breaks something,
unless they take too long.

    .venv/bin/python examples/digits/demo.py --ragent target/debug/ragent
"""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

WORKERS_PER_AGENT = 2
# Three of the 360 test images. With another number of workers, sums of gradients are rounded in another way.
ACCURACY_TOLERANCE = 0.01
# More than fit in the whole demo. It ends the training after the last failure.
EPOCHS = 200
EPOCH_S = 2.5
# Every rank has read the file before it has trained so many more epochs, so all end after the same one.
EPOCHS_TO_END = 3
# The longest wait for standbys. Two cores need 23 s for six of them.
STANDBYS_S = 25
# On two cores, the import of torch in six workers takes most of the time. The limits are generous.
WHOLE_DEMO_S = 420
ONE_WAIT_S = 60
POLL_S = 0.005
TRAIN = Path(__file__).resolve().with_name("train.py")
# The Python module of ragent, by which workers save.
MODULE = TRAIN.parents[2] / "packaging" / "python"
# The third job saves in the folder at its begin only, so what is newer is in memory, where it saves each second.
SAVE_EVERY_S = 600
# It may be killed two seconds after a save on a busy machine, and makes fewer steps in a second.
MOST_REDONE = 2000
EPOCH = re.compile(r"epoch=(\d+)/\d+ world_size=(\d+) .*accuracy=([\d.]+)")


def main():
    args = parse_args()
    # Lets `finally` run when a signal ends the demo.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    demo = Demo(args.ragent)
    try:
        tell_story(demo)
    except DidNotHappen as error:
        demo.keep_folder = True
        sys.exit(f"\nerror: this did not happen: {error}\nhint: the agents' logs are in {demo.folder}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        demo.end()


def tell_story(demo):
    # Two of three voters elect a coordinator. They wait 3 s for the third one.
    demo.say("agents A and B start")
    with demo.event("A and B start", workers=4, restarts=0, round_before=0):
        demo.start_agent("A")
        b = demo.start_agent("B")

    # It follows the coordinator, so it works until the end.
    demo.say(f"the page of the job: {demo.open_page()}")

    demo.wait_for_standbys("A", "B")
    demo.say("kill -9 one worker of B")
    victim = demo.worker_of("B")
    with demo.event("a worker of B is killed", workers=4, restarts=1):
        os.kill(victim, signal.SIGKILL)

    # Joining and leaving members are not failures of the job, so the budget does not change.
    demo.wait_for_standbys("A", "B")
    demo.say("agent C starts; it joins when its standbys are ready, and the time is measured from then on")
    join(demo, "C", "agent C joins")

    demo.wait_for_standbys("A", "C")
    demo.say("kill -9 agent B")
    with demo.event("agent B is killed", workers=4, restarts=1):
        b.kill()
    demo.check("no process of B is alive any more", not demo.processes("B"))

    demo.wait_for_standbys("A", "C")
    demo.say("agent B starts again; a majority of the voters is left when another one is lost")
    join(demo, "B", "agent B returns")

    demo.wait_for_standbys("A", "B", "C")
    leader = demo.leader()
    demo.say(f"kill -9 all processes of agent {leader.name}, which coordinates the job")
    with demo.event("the coordinator is killed", workers=4, restarts=1):
        demo.kill_all(leader)
    demo.check(f"no process of {leader.name} is alive any more", not demo.processes(leader.name))

    demo.say("ragent explain: what happened, and what it cost")
    # Agent B may have coordinated the job when it was killed.
    demo.explain("failure of a worker", "new nodes", "loss of the coordinator")

    demo.say("nothing else is killed, and training ends after its next epochs. "
             "Another job starts the same training without failures, for comparison")
    epochs = demo.end_training()
    living = demo.living()
    demo.start_without_failures(epochs)
    for agent in living:
        demo.wait(f"agent {agent.name} ends", lambda agent=agent: agent.process.poll() is not None)
        code = agent.process.returncode
        demo.check(f"agent {agent.name} exits with 0 (it was {code})", code == 0)
    # Waits for output that is still in the pipes. A process that is left and holds a pipe open is detected below.
    for agent in living:
        agent.reader.join(timeout=2)
    demo.close_page()
    last = demo.epochs[-1]
    demo.check(f"{epochs} epochs were trained (the last was {last.number})", last.number == epochs)

    preempt(demo)
    lose_between_checkpoints(demo)

    expected = demo.end_without_failures()
    print("\n" + demo.table())
    print(f"test accuracy after {last.number} epochs: {last.accuracy:.1%}; "
          f"without failures: {expected.accuracy:.1%}")
    workers = demo.processes(workers_only=True)
    print(f"workers left behind: {len(workers)}", flush=True)
    demo.check(f"no worker is left behind (pids {workers})", not workers)
    demo.wait("no process of any agent is left behind", lambda: not demo.processes(), seconds=2)
    demo.check("the accuracy is that of the training without failures",
               abs(last.accuracy - expected.accuracy) <= ACCURACY_TOLERANCE)


def join(demo, name, event_name):
    """Starts an agent, and measures from the time at which its standbys are ready."""
    with demo.event(event_name, workers=6, restarts=1) as event:
        demo.start_agent(name)
        demo.wait(f"the standbys of {name} are ready", lambda: event.has_begun()
                  or demo.standbys(name) == WORKERS_PER_AGENT, poll_s=0.02)
        event.start = time.monotonic()


def preempt(demo):
    """Runs a job of two agents, and takes away one after the other."""
    demo.say("another job, of agents D and E, with --notice 20")
    agents = [demo.start_agent_with_notice(name) for name in "DE"]
    demo.wait("D and E have trained an epoch", lambda: demo.epochs_of(workers=4))
    demo.say("SIGTERM to agent E, as from a cloud that takes its machine: all ranks save, then E leaves")
    ends = {}
    for agent, workers, code in ((agents[1], 2, 8), (agents[0], None, 5)):
        agent.process.terminate()
        demo.wait(f"agent {agent.name} ends", lambda agent=agent: agent.process.poll() is not None)
        ends[agent.name] = agent.process.returncode
        demo.check(f"agent {agent.name} exits with {code} (it was {ends[agent.name]})", ends[agent.name] == code)
        if workers:
            demo.wait("agent D trains alone", lambda workers=workers: demo.epochs_of(workers=workers))
            demo.say("SIGTERM to agent D as well: it exits with 5, so a scheduler starts the job again")
    answer = demo.ask("explain", "restart", "--journal", demo.folder / "journal-D.jsonl")
    demo.check("`ragent explain` names the saved step", "all ranks have saved step" in answer)


def lose_between_checkpoints(demo):
    """Runs a job with a secret, kills a worker and an agent within an epoch, and checks how much is done again."""
    demo.say("another job, of agents F and G and a spare H, which saves in memory about each second; "
             f"in the folder every {SAVE_EVERY_S} s")
    demo.make_secret()
    agents = {name: demo.start_agent_in_memory(name) for name in "FGH"}
    demo.wait_within_epoch()
    victim = demo.member_beside_f()
    demo.say(f"kill -9 the worker of {victim}, in the middle of an epoch")
    send_signal(signal.SIGKILL, demo.processes(victim, workers_only=True))
    demo.wait("all workers go on from memory", lambda: demo.resumed_in_memory() == 1)

    demo.wait_within_epoch()
    # The spare has taken the place of the node whose worker has failed.
    victim = demo.member_beside_f()
    demo.say(f"kill -9 agent {victim}, in the middle of an epoch; the spare fetches the checkpoint from F")
    agents[victim].kill()
    demo.wait("F and the spare go on from memory", lambda: demo.resumed_in_memory() == 2)
    demo.wait("the cost of both restarts is known", lambda: len(demo.redone()) == 2)
    for agent in agents.values():
        if agent.name != victim:
            agent.process.terminate()
            demo.wait(f"agent {agent.name} ends", lambda agent=agent: agent.process.poll() is not None)

    answer = demo.ask("explain", "restart", "--journal", demo.folder / "journal-F.jsonl")
    demo.check("`ragent explain restart` names two restarts from memory", answer.count("restored step") == 2)
    redone = demo.redone()
    demo.say(f"steps that were done again: {' and '.join(map(str, redone))}; from the folder, it would have been nearly all")
    demo.check(f"at most {MOST_REDONE} steps were done again each time ({redone})", max(redone) <= MOST_REDONE)


class DidNotHappen(Exception):
    """An expected step did not happen. The text names it."""


@dataclass
class Status:
    """A summary of the job's status, as the coordinator reports it."""

    round: int
    all_running: bool
    workers: int
    restarts: int
    leader: int
    text: str


@dataclass
class Epoch:
    """One line of train.py, and the time at which it was read."""

    at: float
    number: int
    workers: int
    accuracy: float


@dataclass
class Event:
    """An event that is measured."""

    demo: "Demo"
    round_before: int
    start: float

    def has_begun(self):
        """Returns true if the job is in a later round than before the event."""
        status = self.demo.status()
        return bool(status) and status.round > self.round_before


class Agent:
    """One started agent. A thread copies its output to a file and, with a prefix, to ours."""

    def __init__(self, name, process, log, on_line):
        self.name = name
        self.process = process
        self.killed = False
        self.last_lines = deque(maxlen=8)
        self.reader = threading.Thread(target=self._read, args=(log, on_line), daemon=True)
        self.reader.start()

    def kill(self):
        self.killed = True
        self.process.kill()

    def _read(self, log, on_line):
        with log.open("wb") as file:
            for line in self.process.stdout:
                file.write(line)
                file.flush()
                text = line.decode(errors="replace").rstrip()
                self.last_lines.append(text)
                on_line(self.name, text)


class Demo:
    """The job under test: its agents, their output, and the measurements."""

    def __init__(self, ragent):
        self.ragent = ragent
        self.folder = Path(tempfile.mkdtemp(prefix="digits-demo-"))
        self.may_end = False
        self.keep_folder = False
        # The endpoint of each agent, all of which are voters.
        self.ports = free_ports("ABCNM")
        # The endpoints of the second and of the third job.
        self.notice_port = self.ports.pop("N")
        self.memory_port = self.ports.pop("M")
        self.noticed = []
        self.in_memory = []
        # The training without failures.
        self.alone = None
        self.trained_alone = []
        # The agent that has most recently answered with the status of the job.
        self.coordinator = "A"
        self.run_id = f"digits-demo-{os.getpid()}-{self.ports['A']}"
        self.start = time.monotonic()
        self.agents = []
        # The process of `ragent page`.
        self.page = None
        self.epochs = []
        self.rows = []
        # The environment may name a proxy, and that could not reach our loopback address.
        self.http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def start_agent(self, name):
        """Starts an agent of the job."""
        return self._start(
            name, self._on_line,
            "--nnodes", "2:3", "--max-restarts", "3", "--rdzv-id", self.run_id,
            "--rdzv-endpoint", self.endpoint(), "--journal", self.folder / f"journal-{name}.jsonl",
            "--rdzv-conf", "shrink_timeout=0,join_settle=0.2,last_call_timeout=1",
            # With heartbeats, a round has new standbys after ten seconds.
            "--standby", "--hang-timeout", "60", "--nproc-per-node", str(WORKERS_PER_AGENT),
            TRAIN, "--epochs", str(EPOCHS), "--seconds-per-epoch", str(EPOCH_S),
            "--folder", self.new_folder("checkpoints"), "--end-file", self.folder / "end",
        )

    def start_agent_with_notice(self, name):
        """Starts an agent of a second job, whose ranks may save before an agent leaves."""
        endpoint = f"127.0.0.1:{self.notice_port}"
        agent = self._start(
            name, self._on_line,
            "--nnodes", "1:2", "--notice", "20", "--rdzv-id", f"{self.run_id}-notice",
            "--rdzv-endpoint", endpoint, "--journal", self.folder / f"journal-{name}.jsonl",
            # Only D may coordinate: the job has one endpoint, and E leaves first.
            "--rdzv-conf", f"last_call_timeout=30,is_host={name == 'D'}".lower(),
            "--nproc-per-node", str(WORKERS_PER_AGENT),
            TRAIN, "--epochs", str(EPOCHS), "--seconds-per-epoch", "1", "--folder", self.new_folder("notice"),
        )
        # It does not run until the end of the training.
        agent.killed = True
        return agent

    def new_folder(self, name):
        """Returns a folder for checkpoints. All agents of a job have the same one."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def make_secret(self):
        """Makes a secret. Without one, no checkpoint crosses the network."""
        made = subprocess.run([self.ragent, "secret", "--init", "--secret-file", self.folder / "secret"],
                              env=self.asker_environment(), capture_output=True, timeout=ONE_WAIT_S, check=False)
        self.check(f"`ragent secret` exits with 0 ({made.stderr})", made.returncode == 0)

    def start_agent_in_memory(self, name):
        """Starts an agent of a third job, whose ranks save in memory."""
        agent = self._start(
            name, self._on_line,
            "--nnodes", "2", "--max-restarts", "3", "--rdzv-id", f"{self.run_id}-memory",
            "--rdzv-endpoint", f"127.0.0.1:{self.memory_port}", "--secret-file", self.folder / "secret",
            "--journal", self.folder / f"journal-{name}.jsonl", "--nproc-per-node", "1",
            "--rdzv-conf", f"is_host={name == 'F'}".lower(),
            TRAIN, "--epochs", str(EPOCHS), "--batch-size", "2", "--save-every", str(SAVE_EVERY_S),
            "--folder", self.new_folder("memory"),
        )
        # It does not run until the end of the training.
        agent.killed = True
        return agent

    def member_beside_f(self):
        """Returns the agent of the third job that has workers and does not coordinate it."""
        return next(name for name in "GH" if self.processes(name, workers_only=True))

    def wait_within_epoch(self):
        """Waits until the third job has begun an epoch, and is in its middle."""
        count = len(self.in_memory)
        self.wait("another epoch is trained", lambda: len(self.in_memory) > count)
        time.sleep(EPOCH_S / 4)

    def redone(self):
        """Returns how many steps each complete restart of the third job has done again."""
        lines = (self.folder / "journal-F.jsonl").read_text().rpartition("\n")[0].splitlines()
        costs = [event["data"] for event in map(json.loads, lines) if event["kind"] == "restart_cost"]
        return [cost["redone_steps"] for cost in costs if cost["is_complete"] and cost["why"] != "first_start"]

    def resumed_in_memory(self):
        """Returns how often the third job has gone on from memory."""
        logs = (self.folder / f"agent-{name}.log" for name in "FGH")
        return sum(log.read_text(errors="replace").count("resumed after step") for log in logs)

    def epochs_of(self, workers):
        """Returns the epochs of the second job with so many workers."""
        return [epoch for epoch in self.noticed if epoch.workers == workers]

    def end_training(self):
        """Lets the first job end after its next epochs. Returns their number from the start."""
        self.may_end = True
        epochs = self.epochs[-1].number + EPOCHS_TO_END
        (self.folder / "end").write_text(str(epochs))
        return epochs

    def start_without_failures(self, epochs):
        """Starts the same training in another job, as fast as it can. It may last while the next jobs run."""
        self.alone = self._start(
            "alone", lambda _, text: self.trained_alone.extend(epochs_in(text)),
            "--standalone", "--nproc-per-node", str(2 * WORKERS_PER_AGENT),
            TRAIN, "--epochs", str(epochs),
        )

    def end_without_failures(self):
        """Waits for the training without failures, and returns its last epoch."""
        self.wait("the training without failures ends", lambda: self.alone.process.poll() is not None,
                  seconds=2 * ONE_WAIT_S)
        self.alone.reader.join(timeout=2)
        return self.trained_alone[-1]

    def _start(self, name, on_line, *words):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PET_")}
        environment |= {
            "PYTHON_EXEC": sys.executable,
            # Three agents share the machine, so there cannot be one GPU per local rank.
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(MODULE), os.environ.get("PYTHONPATH")])),
            # Inherited by workers, so that the demo can find the processes of an agent.
            "DIGITS_DEMO": f"{self.run_id}/{name}",
            # Files that agents leave are removed with the demo's folder.
            "TMPDIR": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
        }
        # In its own session, so that Ctrl-C reaches only the demo, which then ends the agent.
        process = subprocess.Popen(
            [self.ragent, *words], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        agent = Agent(name, process, self.folder / f"agent-{name}.log", on_line)
        self.agents.append(agent)
        return agent

    def _on_line(self, name, text):
        # One write per line, so that lines of several agents do not mix.
        sys.stdout.write(f"agent {name} | {text}\n")
        sys.stdout.flush()
        epochs = self.noticed if name in "DE" else self.in_memory if name in "FGH" else self.epochs
        epochs.extend(epochs_in(text))

    def kill_all(self, agent):
        """Kills an agent with all its processes, so that none is left to report the loss."""
        agent.killed = True
        for number in (signal.SIGSTOP, signal.SIGKILL):
            send_signal(number, self.processes(agent.name))

    def open_page(self):
        """Starts `ragent page`, and returns the address that it has printed."""
        self.page = subprocess.Popen(
            [self.ragent, "page", "--rdzv-endpoint", self.endpoint()], env=self.asker_environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )
        url = self.page.stdout.readline().strip()
        self.check("ragent page prints the address of the page", url.startswith("http://127.0.0.1:"))
        return url

    def close_page(self):
        """Ends `ragent page`."""
        self.check("ragent page runs until the end", self.page.poll() is None)
        self.page.terminate()
        code = self.page.wait(ONE_WAIT_S)
        self.check(f"ragent page exits with 0 (it was {code})", code == 0)

    def asker_environment(self):
        """Returns the environment of commands that ask for the state of the job."""
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}

    def endpoint(self):
        """Returns the list of the voters."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def explain(self, *causes):
        """Prints why the job was restarted, and checks that each cause is named."""
        answer = self.ask("explain", "--rdzv-endpoint", self.endpoint())
        for cause in causes:
            self.check(f"`ragent explain` names the {cause}", cause in answer)
        # Each coordinator has a journal of its own; together they have all restarts.
        journals = b"".join(path.read_bytes() for path in sorted(self.folder.glob("journal-*.jsonl")))
        journal = self.folder / "journal.jsonl"
        journal.write_bytes(journals)
        answer = self.ask("explain", "restart", "--journal", journal)
        self.check("`ragent explain restart` names the killed worker", "killed by SIGKILL" in answer)

    def ask(self, *words):
        """Runs a command of ragent, and prints and returns its output."""
        answer = subprocess.run([self.ragent, *words], env=self.asker_environment(), capture_output=True, text=True,
                                timeout=ONE_WAIT_S, check=False)
        print(answer.stdout, flush=True)
        self.check(f"`ragent {words[0]}` exits with 0 ({answer.stderr})", answer.returncode == 0)
        return answer.stdout

    def living(self):
        return [agent for agent in self.agents if not agent.killed]

    def leader(self):
        """Returns the agent that coordinates the job."""
        return next(agent for agent in self.living() if agent.process.pid == self.status_now().leader)

    def answer(self, name):
        """Returns the status that an agent answers, or None if it does not coordinate the job."""
        try:
            url = f"http://127.0.0.1:{self.ports[name]}/status"
            with self.http.open(url, timeout=1) as answer:
                return json.load(answer)
        except (OSError, http.client.HTTPException, ValueError):
            return None

    def status(self):
        """Returns the job's status, or None while no coordinator answers."""
        names = [self.coordinator, *(name for name in self.ports if name != self.coordinator)]
        answers = ((name, self.answer(name)) for name in names)
        self.coordinator, status = next((found for found in answers if found[1]), (names[-1], None))
        if not status:
            return None
        try:
            port = int(status["leader"].rsplit(":", 1)[1])
            # The id of a node contains the process id of its agent.
            leader = next((int(node["node_id"].split("_")[-2]) for node in status["nodes"]
                           if node["agent_port"] == port), None)
            members = [node for node in status["nodes"] if node["group_rank"] is not None]
            nodes = ", ".join(
                f"{node['state']}" + (f" ({node['reason']})" if node["reason"] else "")
                for node in status["nodes"]
            )
            missing = status["incomplete"]
            return Status(
                round=status["round"],
                all_running=status["phase"] == "running"
                and all(member["state"] == "running" for member in members),
                workers=sum(member["local_world_size"] for member in members),
                restarts=status["restarts_used"],
                leader=leader,
                text=f"round {status['round']} {status['phase']}; nodes: {nodes}"
                + (f"; {missing['text']}" if missing else ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DidNotHappen(f"the status can be read: {error!r} in {status}") from error

    def status_now(self):
        return self.wait("the status is answered", self.status, seconds=5)

    def processes(self, agent="", workers_only=False):
        """Returns the pids of the processes with our mark, of one agent if `agent` is given.

        Zombies have no environment, so they are not included. A standby is no worker: nothing reads
        its output.
        """
        mark = f"DIGITS_DEMO={self.run_id}/{agent}".encode()
        # The ids of the other jobs begin with it.
        run_id = f"TORCHELASTIC_RUN_ID={self.run_id}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_bytes().split(b"\0")
            except OSError:  # It ended meanwhile, or belongs to another user.
                continue
            marked = any(variable.startswith(mark) for variable in variables)
            has_id = any(variable.startswith(run_id) for variable in variables)
            is_worker = has_id and prints_to_pipe(path.parent)
            # A worker counts as ours even if its agent did not pass the mark on.
            if marked if agent else marked or is_worker:
                if is_worker or not workers_only:
                    found.append(int(path.parent.name))
        return found

    def standbys(self, agent):
        """Returns the number of standbys of an agent that have imported torch, and wait."""
        names = []
        for pid in self.processes(agent):
            try:
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
            except OSError:  # It has just ended.
                pass
        return names.count("ragent-standby")

    def wait_for_standbys(self, *agents):
        """Waits until all standbys of `agents` are ready, but not longer than STANDBYS_S."""
        self.say(f"training continues; {' and '.join(agents)} prepare standbys")

        def are_ready():
            return all(self.standbys(agent) == WORKERS_PER_AGENT for agent in agents)

        end = time.monotonic() + STANDBYS_S
        self.wait("new standbys are ready", lambda: are_ready() or time.monotonic() > end, poll_s=0.2)
        if not are_ready():
            self.say("not all standbys are ready yet; the next step takes longer")

    def worker_of(self, agent):
        workers = self.processes(agent, workers_only=True)
        self.check(f"agent {agent} has {WORKERS_PER_AGENT} workers (pids {workers})",
                   len(workers) == WORKERS_PER_AGENT)
        return workers[-1]

    @contextmanager
    def event(self, name, workers, restarts, round_before=None):
        """Measures the time from the block until all workers run, and until training continues.

        The block may set a later start.
        """
        if round_before is None:
            round_before = self.status_now().round
        event = Event(self, round_before, time.monotonic())
        yield event

        def all_running():
            status = self.status()
            new = status and status.round > event.round_before and status.workers == workers
            return status if new and status.all_running else None

        self.wait(f"{name}: all {workers} workers run in a new round", all_running)
        running = time.monotonic()
        # The processes in /proc must agree with the status. A standby that still imports becomes a worker later.
        self.wait(f"{name}: there are {workers} worker processes",
                  lambda: len(self.processes(workers_only=True)) == workers)
        epoch = self.wait(
            f"{name}: training goes on with {workers} workers",
            lambda: next((e for e in self.epochs if e.at > running and e.workers == workers), None),
        )
        used = self.status_now().restarts
        self.check(f"{name}: {restarts} restarts are used (the status shows {used})", used == restarts)
        self.rows.append([name, f"{running - event.start:.3f} s", f"{epoch.at - event.start:.2f} s",
                          str(workers), str(used)])

    def wait(self, what, condition, seconds=ONE_WAIT_S, poll_s=POLL_S):
        """Polls until `condition` holds and returns its value; DidNotHappen after `seconds`."""
        deadline = min(time.monotonic() + seconds, self.start + WHOLE_DEMO_S)
        while not (value := condition()):
            for agent in self.agents:
                code = agent.process.poll()
                if code is None or agent.killed or (code == 0 and self.may_end):
                    continue
                agent.reader.join(timeout=2)
                raise DidNotHappen(f"{what}: agent {agent.name} ended with {code}; its last lines:"
                                   + "".join(f"\n  {line}" for line in agent.last_lines))
            if time.monotonic() > deadline:
                status = self.status()
                raise DidNotHappen(f"{what}: not in time; {status.text if status else 'no status'}")
            time.sleep(poll_s)
        return value

    def check(self, what, holds):
        if not holds:
            raise DidNotHappen(what)

    def say(self, text):
        print(f"\n=== {time.monotonic() - self.start:5.1f} s: {text}", flush=True)

    def table(self):
        head = ["event", "all running", "trained on", "workers", "restarts used"]
        rows = [head, *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)) for row in rows]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def end(self):
        """Ends all processes that are left: agents by SIGTERM first, then everything marked."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if self.page and self.page.poll() is None:
            self.page.kill()
            self.page.wait()
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.terminate()
        deadline = time.monotonic() + 5
        for agent in self.agents:
            try:
                agent.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                agent.process.kill()
                agent.process.wait()
        deadline = time.monotonic() + 5
        while (left := self.processes()) and time.monotonic() < deadline:
            send_signal(signal.SIGKILL, left)
            time.sleep(0.05)
        if not self.keep_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def send_signal(number, pids):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # It ended meanwhile.
            pass


def epochs_in(text):
    """Returns the epoch in a line of output, if there is one, as a list."""
    found = EPOCH.search(text)
    if not found:
        return []
    number, workers = map(int, found.groups()[:2])
    return [Epoch(time.monotonic(), number, workers, float(found.group(3)))]


def prints_to_pipe(process):
    try:
        return os.readlink(process / "fd" / "1").startswith("pipe:")
    except OSError:  # It ended meanwhile, or has closed its standard output.
        return False


def free_ports(names):
    """Returns a free port for each name."""
    # All are held until the last one is found: otherwise the system may select one twice.
    with ExitStack() as held:
        listeners = {name: held.enter_context(socket.socket()) for name in names}
        for listener in listeners.values():
            listener.bind(("127.0.0.1", 0))
        return {name: listener.getsockname()[1] for name, listener in listeners.items()}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragent", default="target/debug/ragent", metavar="PATH",
                        help="the binary under test (%(default)s)")
    args = parser.parse_args()
    if not os.access(args.ragent, os.X_OK) or not Path(args.ragent).is_file():
        parser.error(f"there is no program at `{args.ragent}`; build it: cargo build -p ragent")
    if find_spec("torch") is None:
        parser.error(f"`{sys.executable}` has no torch; run scripts/setup-venv.sh "
                     "and start the demo with .venv/bin/python")
    args.ragent = Path(args.ragent).resolve()
    return args


if __name__ == "__main__":
    main()
