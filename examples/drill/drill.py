"""Breaks a training job on your own machines, and prints how long ragent needs until it trains again.

Start it once on each node, with a new folder on a disk that all nodes share, and with the Python that has torch and ragent:

    mkdir /shared/drill1
    python drill.py --folder /shared/drill1 --nodes 3 --endpoint node0,node1,node2

It starts `ragent`, which starts train.py. The first drill, by name, writes orders to a file in the folder, and each drill carries out those for its
node. Exits with 0 if all promises were kept, with 1 if one was broken, and with 2 if the drill was not possible. It takes minutes, 30 at
most, and needs only the standard library.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Many workers that import torch from a shared disk may take minutes.
WAIT_S = 300
WHOLE_DRILL_S = 1800
STOPPED_S = 20
# No event comes from a shared folder, so it is read again and again.
POLL_S = 0.1
TRAIN = Path(__file__).resolve().with_name("train.py")


class CannotGoOn(Exception):
    """The drill cannot go on. The text has what was attempted, the cause, and what to do."""


class Broken(CannotGoOn):
    """The drill cannot go on, because training does not."""


def main():
    args = parse_args()
    # The exception of SIGINT lets `finally` run.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    drill = Drill(args)
    try:
        first, *_ = names = drill.meet()
        code = FirstDrill(drill, names).run() if drill.name == first else drill.follow(first)
    except CannotGoOn as error:
        sys.stderr.write(f"error: {error}\n")
        code = 2
    except KeyboardInterrupt:
        code = 130
    finally:
        drill.close()
    sys.exit(code)


class Drill:
    """The drill on one node: it starts the agent, carries out orders, and reports."""

    def __init__(self, args):
        self.args, self.folder = args, args.folder
        # Several drills on one machine are several nodes.
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self.orders, self.log, self.steps = (self.folder / name for name in ("orders", f"{self.name}.log", f"{self.name}.steps"))
        self.deadline = time.monotonic() + WHOLE_DRILL_S
        self.agent = self.job = self.problem = self.over = self.reported = None
        self.done, self.may_end, self.found = 0, False, {}
        # Sockets do not work on a shared disk. In a folder of its own, commands of ragent find this agent only.
        self.private = tempfile.mkdtemp(prefix="drill-")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "RUNTIME_DIRECTORY"))}
        self.environment.update(
            PYTHON_EXEC=sys.executable, XDG_RUNTIME_DIR=self.private, DRILL=f"{self.folder}/{self.name}", DRILL_STEPS=str(self.steps),
            # The agent leaves the job when this drill is killed.
            RAGENT_EXIT_WITH_PARENT=str(os.getpid()),
        )

    def meet(self):
        """Waits until all nodes have come. Returns the names of their drills, in order."""
        if self.orders.exists():
            raise CannotGoOn(f"failed to start a drill in {self.folder}: another one runs or has run there; give a new folder")
        self.steps.touch()
        self.report()
        print(f"drill {self.name} waits until {self.args.nodes} nodes have come", flush=True)
        end = time.monotonic() + WAIT_S
        while len(names := sorted(path.stem for path in self.folder.glob("*.report") if whole_lines(path))) != self.args.nodes:
            came = f"{len(names)} of {self.args.nodes} nodes came to {self.folder}: {', '.join(names)}"
            if len(names) > self.args.nodes:
                raise CannotGoOn(f"failed to begin the drill: {came}; another drill uses this folder, so give a new one")
            if time.monotonic() > end:
                raise CannotGoOn(f"failed to begin the drill in {WAIT_S} s: {came}; start the others, in a folder on a disk that all nodes share")
            time.sleep(POLL_S)
        return names

    def follow(self, first):
        """Carries out orders until the end of the drill. Returns the exit code."""
        print(f"drill {first} breaks the job, and prints the results", flush=True)
        while not self.over:
            # It gives its last order before it ends.
            first_is_over = read_report(self.folder, first)["over"]
            self.tick()
            if first_is_over and not self.over:
                raise CannotGoOn(f"failed to end the drill: {first} has ended before; look at what it has printed")
            time.sleep(POLL_S)
        return int(self.over == "broken")

    def tick(self):
        """Carries out new orders, looks after the agent, and reports."""
        if time.monotonic() > self.deadline:
            raise CannotGoOn(f"failed to end the drill in {WHOLE_DRILL_S} s; the logs are in {self.folder}")
        for order in map(json.loads, whole_lines(self.orders)[self.done:]):
            if order["node"] in (self.name, "all"):
                getattr(self, f"do_{order['do']}")(**order["with"])
            self.done += 1
        code = self.agent.poll() if self.agent else None
        if code is not None:
            self.agent = None
            if not self.may_end:
                errors = [line for line in whole_lines(self.log) if "error: " in line and code > 0]
                self.problem = f"the agent has ended with {code}: {(errors or [f'look at {self.log}'])[-1]}"
        self.report()

    def report(self):
        """Writes what the first drill reads."""
        report = json.dumps({"done": self.done, "problem": self.problem, "found": self.found, "over": self.over, "has_agent": bool(self.agent)})
        if report != self.reported:
            append(self.folder / f"{self.name}.report", report)
            self.reported = report

    def do_start(self, job=None):
        self.job, self.may_end, nodes = job or self.job, False, self.args.nodes
        words = [
            self.args.ragent, "--nnodes", f"{min(2, nodes - 1)}:{nodes}" if nodes > 1 else "1", "--nproc-per-node", self.args.workers,
            "--max-restarts", 10, "--notice", 60, "--rdzv-endpoint", self.args.endpoint, "--rdzv-id", self.job,
            "--secret-file", self.folder / "secret", "--log-dir", self.folder / "logs", *self.args.flags, TRAIN, self.folder / "checkpoints",
        ]
        with open(self.log, "ab") as log:
            # In a session of its own, Ctrl-C does not reach it.
            self.agent = subprocess.Popen(
                [str(word) for word in words], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def do_signal(self, pid, number):
        if pid in self.processes():
            os.kill(pid, number)

    def do_kill_agent(self):
        """Kills the agent, and starts it again, as a service manager would."""
        self.agent.kill()
        self.agent.wait()
        self.do_start()

    def do_leave(self):
        self.may_end = True
        answer = self.ask("notice", "leave", "drill")
        if answer.returncode:
            self.problem = f"`ragent notice leave` failed: {answer.stderr.strip()}"

    def do_look(self):
        self.found = self.processes()

    def do_end(self, how):
        """Waits for the end of the agent, or kills it. Reports the processes that are left, and kills them."""
        self.may_end = True
        if self.agent:
            try:
                self.agent.wait(WAIT_S if how == "kept" else 0)
            except subprocess.TimeoutExpired:
                self.agent.kill()
                self.agent.wait()
        end = time.monotonic() + 10
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(POLL_S)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        self.found, self.over = found, how

    def close(self):
        """Ends what is left, also after an error."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if not self.over:
            self.problem = self.problem or "the drill was ended"
            self.do_end("ended")
        shutil.rmtree(self.private, ignore_errors=True)
        self.report()

    def ask(self, *words):
        """Runs a command of ragent, which finds the agent of this drill."""
        return subprocess.run(
            [self.args.ragent, *words], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S, check=False)

    def processes(self):
        """Returns the processes that this drill's agents have started: the round of each, by process id. The agent itself has none."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                text = path.read_bytes().decode(errors="replace")
            except OSError:  # It has ended, or belongs to another user.
                continue
            variables = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
            if variables.get("DRILL") == self.environment["DRILL"]:
                found[int(path.parent.name)] = f"{variables.get('MASTER_ADDR')}:{variables.get('MASTER_PORT')}"
        return found


class FirstDrill:
    """Breaks the job, measures, and judges. While it waits, its own node carries out orders."""

    def __init__(self, drill, names):
        self.drill, self.names, self.folder = drill, names, drill.folder
        self.orders, self.start = 0, time.monotonic()
        hosts = drill.args.endpoint.split(",")
        self.hosts, self.endpoint = len(hosts), hosts[0] if ":" in hosts[0] else f"{hosts[0]}:29400"
        # What train.py has written, by node and round, and how much of it was read.
        self.rounds, self.read_to = {name: {} for name in names}, dict.fromkeys(names, 0)
        self.rows, self.not_tried, self.broken = [("what happened", "time without a step", "steps done again")], [], []

    def run(self):
        """Does all steps, and prints the results. Returns the exit code."""
        (self.folder / "checkpoints").mkdir()
        made = self.drill.ask("secret", "--init", "--secret-file", self.folder / "secret")
        if made.returncode:
            raise CannotGoOn(f"failed to make a secret in {self.folder}: {made.stderr.strip()}")
        self.say(f"the job starts on {', '.join(self.names)}")
        self.order("all", "start", job=f"drill-{os.urandom(4).hex()}")
        self.settle()
        try:
            self.break_all()
            self.say("the job ends")
            answer = self.drill.ask("notice", "end", "--wait", "drill")
            if answer.returncode:
                self.broken.append(f"all ranks save before the end: {answer.stderr.strip()}")
            self.order("all", "end", how="broken" if self.broken else "kept")
            self.check_left("after the end")
        except Broken as error:
            self.broken.append(f"training goes on: {error}")
            self.order("all", "end", wait=False, how="broken")
        for what, seconds, redone in self.rows:
            print(f"{what:<47}  {seconds:<19}  {redone}")
        for text in self.not_tried:
            print(f"not tried: {text}")
        for text in self.broken or ["none"]:
            print(f"broken promise: {text}")
        print(f"logs: {self.folder}", flush=True)
        return int(bool(self.broken))

    def break_all(self):
        victim, count = self.victim(), len(self.names)
        ranks = self.newest_round(victim)["ranks"]
        self.lose("a worker is killed", victim, "signal", pid=ranks[max(ranks)], number=signal.SIGKILL)
        self.lose("an agent is killed, and started again", self.victim(), "kill_agent")
        if count < 3 or self.hosts < 3:
            self.not_tried.append(f"the leader's agent is killed: it needs 3 nodes and 3 hosts in --endpoint, not {count} and {self.hosts}")
        elif leader := self.leader():
            self.lose("the leader's agent is killed, and started again", leader, "kill_agent")
        else:
            self.not_tried.append("the leader's agent is killed: no node has the leader's address in `ragent status`")
        self.stop_a_rank()
        if count < 2:
            self.not_tried.append("a node leaves and returns: it needs 2 nodes")
            return
        victim = self.victim()
        self.lose("a node leaves after a notice", victim, "leave")
        self.wait("end the agent of the node that leaves", lambda: not read_report(self.folder, victim)["has_agent"])
        self.lose("the node returns", victim, "start")

    def lose(self, what, victim, do, **words):
        """Gives an order that ends the round, waits until training goes on, and judges."""
        self.say(what)
        old = {key for rounds in self.rounds.values() for key in rounds}
        saved = [int(path.name[5:]) for path in (self.folder / "checkpoints").glob("step-*")]
        self.order(victim, do, **words)
        new = self.wait(f"train again after: {what}", lambda: next(
            (key for rounds in self.rounds.values() for key in rounds if key not in old and "first" in rounds[key]), None))
        gaps, steps, copied, loaded = [], [], [0, *saved], []
        for rounds in self.rounds.values():
            before = [round for key, round in rounds.items() if key in old and "last" in round]
            steps += [round["step"] for round in before]
            # Memory ends with the only agent.
            copied += [round["copied"] for round in before if do != "kill_agent" or len(self.names) > 1]
            loaded += [rounds[new]["loaded"]] if new in rounds else []
            if before and "first" in rounds.get(new, {}):
                # Clocks of machines differ, so the clock of one node counts.
                gaps.append(rounds[new]["first"] - max(round["last"] for round in before))
        self.rows.append((what, f"{min(gaps):.1f} s" if gaps else "unknown", str(max(steps) - loaded[0])))
        if loaded[0] < max(copied):
            self.broken.append(
                f"no step before the newest copy is done again: step {max(copied)} was copied, and training went on from step {loaded[0]} after: {what}")
        self.order("all", "look")
        self.check_left(f"after: {what}", old)
        self.settle(without=victim if do == "leave" else None)

    def stop_a_rank(self):
        what, name = f"a rank is stopped for {STOPPED_S} s", self.victim()
        self.say(what)
        round = self.newest_round(name)
        rank, pid = max(round["ranks"].items())
        self.order(name, "signal", pid=pid, number=signal.SIGSTOP)
        end, step = time.monotonic() + STOPPED_S, round["step"]
        named = self.wait(what, lambda: re.search(rf"\brank {rank}\b.* stopped", self.drill.ask("stacks").stdout) or time.monotonic() > end)
        if named is True:
            self.not_tried.append(f"the name of the stopped rank: `ragent stacks` did not show rank {rank}")
        else:
            self.say(f"`ragent stacks` has named rank {rank} after {STOPPED_S - end + time.monotonic():.1f} s")
        self.not_tried.append(f"`ragent explain stall`: it needs a minute without a step, not {STOPPED_S} s")
        self.wait(what, lambda: time.monotonic() > end)
        self.order(name, "signal", pid=pid, number=signal.SIGCONT)
        self.wait(f"train again after: {what}", lambda: round["step"] > step and round["gap"] > STOPPED_S / 2)
        self.rows.append((what, f"{round['gap']:.1f} s", "0"))

    def check_left(self, when, rounds=None):
        """Judges what the drills have found: no process of these rounds may be left, or none at all."""
        found = [(name, *process) for name in self.names for process in read_report(self.folder, name)["found"].items()]
        left = [f"{pid} on {name}" for name, pid, round in found if rounds is None or round in rounds]
        if left:
            self.broken.append(f"no process is left: {when}, these still run: {', '.join(left)}")

    def settle(self, without=None):
        """Waits until all nodes train in one round, and a step of this round is copied."""
        names = [name for name in self.names if name != without]

        def is_settled():
            newest = [self.newest_round(name) for name in names]
            return all(newest) and all(round.get("copied", 0) > round["loaded"] and round["key"] == newest[0]["key"] for round in newest)

        self.wait(f"train together, with copies in memory, on {', '.join(names)}", is_settled)

    def victim(self):
        """Returns a node that may be lost: not that of the leader if there are others."""
        leader = self.leader()
        return [name for name in self.names if name != leader or len(self.names) == 1][-1]

    def leader(self):
        """Returns the node whose agent coordinates the job, or None."""
        try:
            status = json.loads(self.drill.ask("status", "--json").stdout)
            # Without voters, it is the endpoint.
            host, _, port = (status["leader"] or self.endpoint).rpartition(":")
            hosts = {host, host.split(".")[0], *(info[4][0] for info in socket.getaddrinfo(host.strip("[]"), None))}
            rank = next(node["first_global_rank"] for node in status["nodes"]
                        if node["agent_port"] == int(port) and hosts & {node["address"], node["observed"], node["host_name"].split(".")[0]})
            return next(name for name in self.names if rank in self.newest_round(name)["ranks"])
        except (KeyError, TypeError, ValueError, OSError, StopIteration):
            return None

    def newest_round(self, name):
        return next(reversed(self.rounds[name].values()), {})

    def read(self):
        """Reads what train.py has written on all nodes."""
        for name, rounds in self.rounds.items():
            with open(self.folder / f"{name}.steps", "rb") as file:
                file.seek(self.read_to[name])
                text = file.read()
            whole = text[:text.rfind(b"\n") + 1]
            self.read_to[name] += len(whole)
            for line in map(json.loads, whole.splitlines()):
                round = rounds.setdefault(line["round"], {"key": line["round"], "ranks": {}, "loaded": 0, "gap": 0})
                if "pid" in line:
                    round["ranks"][line["rank"]] = line["pid"]
                    round["loaded"] = line["loaded"]
                else:
                    round.setdefault("first", line["at"])
                    round["gap"] = max(round["gap"], line["at"] - round.get("last", line["at"]))
                    round.update(step=line["step"], copied=line["copied"], last=line["at"])

    def order(self, node, do, wait=True, **words):
        """Gives an order, and waits until all drills have come to it."""
        append(self.drill.orders, json.dumps({"node": node, "do": do, "with": words}))
        self.orders += 1
        if wait:
            self.wait(f"carry out `{do}`", lambda: all(read_report(self.folder, name)["done"] >= self.orders for name in self.names))

    def wait(self, what, condition):
        """Waits until the condition holds, and returns its value."""
        end = time.monotonic() + WAIT_S
        while True:
            self.drill.tick()
            self.read()
            if value := condition():
                return value
            for name, report in ((name, read_report(self.folder, name)) for name in self.names):
                if report["problem"]:
                    raise (CannotGoOn if report["over"] else Broken)(f"failed to {what}: on {name}, {report['problem']}")
            if time.monotonic() > end:
                raise Broken(f"failed to {what}: not within {WAIT_S} s; the logs are in {self.folder}")
            time.sleep(POLL_S)

    def say(self, text):
        print(f"{time.monotonic() - self.start:6.1f} s: {text}", flush=True)


def append(path, line):
    """Adds a line. Another machine sees it on NFS when the file is closed."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def whole_lines(path):
    """Returns the lines that are written whole. There are none before the file exists."""
    return path.read_text(errors="replace").split("\n")[:-1] if path.exists() else []


def read_report(folder, name):
    return json.loads(whole_lines(folder / f"{name}.report")[-1])


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Flags of ragent may follow after `--`.")
    parser.add_argument("--folder", required=True, type=Path, help="a new folder on a disk that all nodes share")
    parser.add_argument("--nodes", required=True, type=int, metavar="N", help="the number of nodes; start this on each")
    parser.add_argument("--endpoint", required=True, metavar="HOST,…", help="as --rdzv-endpoint of ragent; three hosts, to kill the leader too")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    args.flags, args.folder, args.ragent = words[split + 1:], args.folder.absolute(), shutil.which("ragent")
    if args.nodes < 1:
        parser.error(f"failed to start the drill: --nodes is {args.nodes}; give the number of your nodes")
    if not args.ragent:
        parser.error("failed to start the drill: no folder of PATH has the program `ragent`; install it, or add its folder to PATH")
    try:
        tempfile.TemporaryFile(dir=args.folder).close()
    except OSError as error:
        parser.error(f"failed to write into {args.folder}: {error.strerror}; make the folder, on a disk that all nodes share")
    code = "import torch, ragent; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        parser.error(f"failed to import torch and ragent with {sys.executable}: {reason}; start the drill with the Python of your training")
    # Without GPUs, there are two ranks, so that one can wait for the other.
    args.workers = int(asked.stdout.split()[-1]) or 2
    return args


if __name__ == "__main__":
    main()
