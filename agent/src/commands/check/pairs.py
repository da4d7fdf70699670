"""Finds bad and slow machines: the worker of `ragent check`, one for each rank.

As in other node checks, nodes work in pairs, and a second pass changes the partners. A node that fails in both passes is bad, if a partner
of it has passed the other one. If no partner has, it cannot be judged.

1. Each node announces itself in the store of the job.
2. The first worker forms pairs of neighbours, and writes them into the store.
3. Each worker starts a child, which multiplies matrices and takes part in an `all_reduce` of its pair. It is killed if it does not end in
   time, so no pair stops another one, and no failure of a pair ends the job.
4. The first worker forms other pairs: the fastest node with the slowest one, and nodes that have failed with those that have not.
5. After the second pass it prints the report, and writes the bad and slow nodes to a file. All workers exit with 0. The first worker of
   each node writes the verdict to another file: `good`, or the message with which its agent ends.

Children are forked, because importing torch takes seconds. Workers never initialize CUDA, so that their children can.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import re
import select
import signal
import socket
import statistics
import sys
import time
import warnings
from datetime import timedelta
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

# Seconds that nodes may differ in starting, and that a child may take to end.
MARGIN = 30
# A node is slow if it takes this many times as long as the median, if there are this many nodes.
SLOW = 2
NODES_FOR_MEDIAN = 4
# Bytes of the tensor of `all_reduce`, and how often it is reduced: short pauses of the network are averaged.
REDUCED_BYTES = 64 << 20
REDUCED_TIMES = 8
# Size and number of the products of matrices: about a second of a recent GPU, and of a processor.
GPU_PRODUCTS = (8192, 32)
CPU_PRODUCTS = (1024, 8)
# Characters of an error in the report.
MAX_ERROR = 160
# `compare_set` returns it for a key that is not in the store, and no value is equal to it.
ABSENT = "absent"
# The verdict if all nodes are good. Another one is a message.
GOOD = "good"

Group = List[int]


class Attempt(NamedTuple):
    """One pass of a node: its partners, and the seconds it took or the error."""

    partners: Tuple[int, ...]
    seconds: Optional[float]
    error: str = ""
    # True if it has failed before it needed its partners.
    is_alone: bool = False

    @property
    def has_failed(self) -> bool:
        return self.seconds is None


class Named(NamedTuple):
    """A node that the next job should not use."""

    node: int
    reason: str


class Verdict(NamedTuple):
    """The nodes that are bad or slow, the lines of the report, and whether all nodes are good."""

    named: List[Named]
    lines: List[str]
    is_good: bool


def neighbours(nodes: Sequence[int]) -> List[Group]:
    """Returns pairs of neighbours, and a group of three at the end if the number of nodes is odd."""
    groups = [list(nodes[first : first + 2]) for first in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2 == 1 and groups:
        groups[-1].append(nodes[-1])
    return groups


def changed(groups: Sequence[Group], seconds: Dict[int, Optional[float]]) -> List[Group]:
    """Returns the groups of the second pass. `seconds` has no time for nodes that have failed.

    The fastest node gets the slowest one, and a node that has failed one that has not. From four nodes on, no pair stays together.
    """
    nodes = sorted(node for group in groups for node in group)
    has_failed = any(seconds.get(node) is None for node in nodes)

    def rank(node: int) -> Tuple[bool, bool, float, int]:
        taken = seconds.get(node)
        # All nodes reach the first one, which has the store. For the links of a node that has failed, the others are a better test.
        return (taken is None, has_failed and node == nodes[0], taken or 0.0, node)

    ordered = sorted(nodes, key=rank)
    half = len(ordered) // 2
    pairs = [[ordered[index], ordered[-1 - index]] for index in range(half)]
    together = [set(group) for group in groups]

    def is_repeated(pair: Group) -> bool:
        return any(set(pair) <= group for group in together)

    for pair in pairs:
        for other in reversed(pairs):
            exchanged = [pair[0], other[1]], [other[0], pair[1]]
            if is_repeated(pair) and not any(is_repeated(each) for each in exchanged):
                pair[1], other[1] = other[1], pair[1]
    if len(ordered) % 2 == 1 and pairs:
        # The node in the middle joins the last pair, which is closest to it in speed.
        pairs[-1].append(ordered[half])
    return pairs


def judge(
    names: Dict[int, str], missing: Sequence[int], passes: Sequence[Dict[int, Attempt]], limit: float, out: str
) -> Verdict:
    """Returns the verdict about all nodes.

    `missing` are nodes that have not announced themselves in `limit` seconds. The others have an attempt in each of `passes`.
    """
    attempts = {node: [each[node] for each in passes] for node in (passes[0] if passes else [])}
    failed = [node for node in attempts if all(attempt.has_failed for attempt in attempts[node])]
    bad = _bad(attempts, failed)
    named = [Named(node, f"{_silent(limit)}, its own output may have the reason") for node in missing]
    named += [Named(node, _failed_twice(names, attempts[node])) for node in bad]
    named += _slow({node: two for node, two in attempts.items() if node not in failed})
    notes = _not_judged(names, attempts, failed, bad, limit)
    not_good = {*failed, *(each.node for each in named)}
    notes += _links(names, attempts, not_good)
    if not attempts:
        notes.append("no node was checked, since fewer than two have answered")
    good = len([node for node in attempts if node not in not_good])
    count = f"{good} node is good" if good == 1 else f"{good} nodes are good"
    listed = [each for each in named if each.node not in missing]
    if listed:
        others = "the others are" if good + len(listed) == len(names) else "bad nodes are"
        notes.append(f"{count}; {others} in {out}" if good else f"bad nodes are in {out}")
    elif good:
        notes.append(count)
    width = max([len(names[each.node]) for each in named], default=0)
    lines = [f"{names[each.node]:{width}}   {each.reason}" for each in sorted(named)]
    return Verdict(sorted(named), lines + notes, good == len(names))


def _bad(attempts: Dict[int, List[Attempt]], failed: Sequence[int]) -> List[int]:
    """Returns those failed nodes that are bad for sure: other nodes do not explain why they have failed.

    Either a node has failed without its partners, or all partners of one attempt have passed another one.
    """

    def is_bad(node: int) -> bool:
        return any(each.is_alone or not set(each.partners) & set(failed) for each in attempts[node])

    alone = [node for node in attempts if all(each.is_alone for each in attempts[node])]
    # If all nodes fail in the same way, it is what they have in common.
    return [] if len(alone) == len(attempts) else [node for node in failed if is_bad(node)]


def _not_judged(
    names: Dict[int, str], attempts: Dict[int, List[Attempt]], failed: Sequence[int], bad: Sequence[int], limit: float
) -> List[str]:
    """Returns lines about the nodes that have failed, and may be good."""
    others = [node for node in failed if node not in bad]
    if not others:
        return []
    found = [(names[node], attempt) for node in others for attempt in attempts[node]]
    are_few = len(attempts) < NODES_FOR_MEDIAN and not any(attempt.is_alone for _, attempt in found)
    if are_few and bad:
        cause = f"because {_all(names, bad)} failed: check again without it"
        return [f"{_all(names, others)} could not be checked, {cause}"]
    error = next((f"on {name}: {each.error}" for name, each in found if each.error != _silent(limit)), _silent(limit))
    if are_few:
        return [
            f"{_all(names, others)} failed together twice ({error})",
            "with three or fewer nodes, nothing shows which of them is bad: check them again, together with other nodes",
        ]
    if len(others) == len(attempts):
        return [
            f"all nodes have failed ({error}): look first for what they have in common, such as a firewall between them, or "
            "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        ]
    lines = []
    for node in others:
        partners = sorted({partner for attempt in attempts[node] for partner in attempt.partners} & set(failed))
        whose = "partner" if len(partners) == 1 else "partners"
        lines.append(
            f"{names[node]} could not be judged: its {whose} {_all(names, partners)} also failed twice. Check it again with other nodes"
        )
    return lines


def _silent(limit: float) -> str:
    return f"no answer in {limit:g} s"


def _failed_twice(names: Dict[int, str], attempts: Sequence[Attempt]) -> str:
    partners = sorted({partner for attempt in attempts for partner in attempt.partners})
    # The error of a collective often is that of the partner.
    error = min(attempts, key=lambda attempt: not attempt.is_alone).error
    return f"failed twice: with {', '.join(names[node] for node in partners)} ({error})"


def _slow(attempts: Dict[int, List[Attempt]]) -> List[Named]:
    """Returns the slow nodes. The better of the two passes counts, as in the other one the partner may have been slow."""
    best = {node: min(each.seconds for each in two if each.seconds is not None) for node, two in attempts.items()}
    if len(best) < NODES_FOR_MEDIAN:
        return []
    median = statistics.median(best.values())
    slow = {node: seconds for node, seconds in best.items() if seconds > SLOW * median}
    return [Named(node, f"slow: {_seconds(taken)}, median {_seconds(median)}") for node, taken in slow.items()]


def _links(names: Dict[int, str], attempts: Dict[int, List[Attempt]], bad: Set[int]) -> List[str]:
    """Returns a line for each group that has failed once although its nodes are good. A link between them may be bad."""
    lines = []
    for number, which in enumerate(("first", "second")):
        groups = {
            tuple(sorted((node, *two[number].partners))): two[number].error
            for node, two in attempts.items()
            if two[number].has_failed
        }
        for group, error in sorted(groups.items()):
            if not bad & set(group):
                lines.append(
                    f"{_all(names, group)} failed together in the {which} pass only ({error}): the link between them may be bad"
                )
    return lines


def _all(names: Dict[int, str], nodes: Sequence[int]) -> str:
    *first, last = [names[node] for node in nodes]
    return f"{', '.join(first)} and {last}" if first else last


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.2g} s"


def unique_names(hosts: Dict[int, str]) -> Dict[int, str]:
    """Returns a name for each node: that of its host, with its group rank if other nodes have the same."""
    all_hosts = list(hosts.values())
    return {node: host if all_hosts.count(host) == 1 else f"{host} (group rank {node})" for node, host in hosts.items()}


class Expired(BaseException):
    """The import of torch takes too long. Not an `Exception`, which the import might catch."""


class OwnFailure(Exception):
    """The node has failed without its partners."""


def imported(name: str) -> Any:
    """Returns a module of torch. It is imported late, so that its absence has a message, and the rules above need no torch."""
    return importlib.import_module(name)


class Job:
    """The place of this worker in the job, and the store through which the workers meet."""

    def __init__(self, seconds: float) -> None:
        number: Callable[[str], int] = lambda name: int(os.environ[name])
        self.seconds = seconds
        self.node = number("GROUP_RANK")
        self.nodes = number("GROUP_WORLD_SIZE")
        self.local_rank = number("LOCAL_RANK")
        self.local_size = number("LOCAL_WORLD_SIZE")
        self.is_first = number("RANK") == 0
        serves = self.is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self.store = connect(serves, seconds)

    def set(self, key: str, value: Any) -> None:
        self.store.set(f"check/{key}", json.dumps(value))

    def get(self, key: str, seconds: float) -> Any:
        """Waits for a value."""
        self.store.wait([f"check/{key}"], timedelta(seconds=seconds))
        return json.loads(self.store.get(f"check/{key}"))

    def collect(self, keys: Sequence[str], seconds: float) -> Dict[str, Any]:
        """Returns the values that are there after `seconds`, or as soon as all of them are."""
        try:
            self.store.wait([f"check/{key}" for key in keys], timedelta(seconds=seconds))
        except RuntimeError:
            # Some are missing. If the store is gone, the next operation fails too.
            pass
        values = {key: self._now(key) for key in keys}
        return {key: json.loads(value) for key, value in values.items() if value != ABSENT}

    def _now(self, key: str) -> str:
        """Returns a value without waiting for it. Older releases of torch have no `check`."""
        value: bytes = self.store.compare_set(f"check/{key}", ABSENT, ABSENT)
        return value.decode()


def connect(serves: bool, seconds: float) -> Any:
    """Connects to the store of the job, which an agent serves, or with fixed ranks the first worker."""
    dist = imported("torch.distributed")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, None, serves, timedelta(seconds=seconds), wait_for_workers=False)


def limited(work: Callable[[Callable[[Any], None]], None], seconds: float) -> Any:
    """Runs `work` in a child, and returns the value that it reports. The value is an error if it does not end in time."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_child(work, writer)
    os.close(writer)
    end = time.monotonic() + seconds
    text = b""
    while True:
        if not select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            break
        part = os.read(reader, 65536)
        if not part:
            break
        text += part
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    status = _reap(child)
    if text:
        return json.loads(text.split(b"\n")[0])
    if time.monotonic() >= end or status is None:
        return {"error": _silent(seconds)}
    return {"error": f"killed by signal {status & 127}" if status & 127 else f"exited with {status >> 8}"}


def _run_child(work: Callable[[Callable[[Any], None]], None], writer: int) -> None:
    """Becomes a child. Never returns."""
    # The libraries print errors of their own. With NCCL_DEBUG, the user wants to see them.
    if "NCCL_DEBUG" not in os.environ:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)

    def report(value: Any) -> None:
        os.write(writer, json.dumps(value).encode() + b"\n")

    try:
        work(report)
    except BaseException as error:
        report({"error": described(error), "is_alone": isinstance(error, OwnFailure)})
    # Neither the store of the parent nor the threads of a library may be closed.
    os._exit(0)


def _reap(child: int) -> Optional[int]:
    """Returns the status of a killed child. `None` if it hangs in the kernel: then it ends with this process, or never."""
    for _ in range(20):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid != 0:
            return status
        time.sleep(0.05)
    return None


def described(error: BaseException) -> str:
    """Returns the first line of an error, without the file and line of a library."""
    lines = re.sub(r"^\[[^\]]*:\d+\]\s*", "", str(error).strip()).splitlines()
    return (lines[0] if lines else type(error).__name__)[:MAX_ERROR]


def has_cuda(report: Callable[[Any], None]) -> None:
    """Reports whether torch can use a GPU."""
    torch = imported("torch")
    report({"cuda": torch.cuda.is_available()})


class Place(NamedTuple):
    """The place of a child in its group."""

    name: str
    rank: int
    size: int
    local_rank: int
    backend: str
    seconds: float


def work_together(place: Place, report: Callable[[Any], None]) -> None:
    """Multiplies matrices, and takes part in the `all_reduce` of the group. Reports the seconds."""
    torch = imported("torch")
    dist = imported("torch.distributed")
    limit = timedelta(seconds=place.seconds)
    try:
        device = torch.device("cpu")
        if place.backend == "nccl":
            device = torch.device("cuda", place.local_rank % max(1, torch.cuda.device_count()))
            torch.cuda.set_device(device)
        multiply(device, times=1)
    except Exception as error:
        raise OwnFailure(described(error)) from None
    store = dist.PrefixStore(f"check/{place.name}", connect(False, place.seconds))
    dist.init_process_group(place.backend, store=store, rank=place.rank, world_size=place.size, timeout=limit)
    tensor = torch.ones(REDUCED_BYTES // 4, device=device)
    # The first one opens the connections. After it, all ranks begin at once.
    dist.all_reduce(tensor)
    synchronize(device)
    begin = time.monotonic()
    multiply(device, (GPU_PRODUCTS if device.type == "cuda" else CPU_PRODUCTS)[1])
    for _ in range(REDUCED_TIMES):
        tensor.fill_(1)
        dist.all_reduce(tensor)
    synchronize(device)
    if not bool((tensor == place.size).all()):
        raise RuntimeError("all_reduce gave a wrong sum")
    report({"seconds": time.monotonic() - begin})
    # The last `all_reduce` of the others may still need this process.
    store.set(f"done/{place.rank}", "1")
    store.wait([f"done/{rank}" for rank in range(place.size)], limit)


def multiply(device: Any, times: int) -> None:
    """Multiplies matrices of ones, and checks the last product."""
    torch = imported("torch")
    size = (GPU_PRODUCTS if device.type == "cuda" else CPU_PRODUCTS)[0]
    ones = torch.ones(size, size, device=device)
    product = torch.empty_like(ones)
    for _ in range(times):
        torch.mm(ones, ones, out=product)
    if not bool((product == size).all()):
        raise OwnFailure("a product of matrices was wrong")


def synchronize(device: Any) -> None:
    """Waits until the device has done its work."""
    torch = imported("torch")
    if device.type == "cuda":
        torch.cuda.synchronize()


def take_part(job: Job, number: int) -> bool:
    """Takes part in a pass. Returns false if this node is not in it."""
    # The first worker imports torch, looks for GPUs, and waits for all nodes or all results, before it writes the plan.
    plan = job.get(f"plan/{number}", 3 * (job.seconds + MARGIN) + MARGIN)
    group = next((group for group in plan["groups"] if job.node in [node for node, _ in group]), None)
    if group is None:
        return False
    before = sum(size for node, size in group if node < job.node)
    size = sum(size for _, size in group)
    name = f"pair/{number}/{group[0][0]}"
    place = Place(name, before + job.local_rank, size, job.local_rank, plan["backend"], job.seconds)
    answer = limited(lambda report: work_together(place, report), job.seconds)
    job.set(f"result/{number}/{job.node}/{job.local_rank}", answer)
    return True


class Coordinator:
    """The part of the first worker: it forms the pairs, and judges."""

    def __init__(self, job: Job, backend: Optional[str], out: str) -> None:
        self.job = job
        self.out = out
        keys = [f"node/{node}" for node in range(job.nodes)]
        found = job.collect(keys, job.seconds + MARGIN)
        self.nodes = {node: found[key] for node, key in enumerate(keys) if key in found}
        self.missing = [node for node in range(job.nodes) if node not in self.nodes]
        # A node without a GPU fails if another one has one.
        self.backend = backend or ("nccl" if any(node["cuda"] for node in self.nodes.values()) else "gloo")

    def begin(self, number: int, groups: Sequence[Group]) -> None:
        """Writes the plan of a pass."""
        sizes = [[(node, self.nodes[node]["workers"]) for node in sorted(group)] for group in groups]
        self.job.set(f"plan/{number}", {"backend": self.backend, "groups": sizes})

    def attempts(self, number: int, groups: Sequence[Group]) -> Dict[int, Attempt]:
        """Waits for the results of a pass."""
        keys = {
            node: [f"result/{number}/{node}/{rank}" for rank in range(self.nodes[node]["workers"])]
            for group in groups
            for node in group
        }
        found = self.job.collect([key for each in keys.values() for key in each], self.job.seconds + MARGIN)
        silent = {"error": _silent(self.job.seconds)}
        return {
            node: attempt([each for each in group if each != node], [found.get(key, silent) for key in keys[node]])
            for group in groups
            for node in group
        }

    def report(self, passes: Sequence[Dict[int, Attempt]]) -> str:
        """Prints the report, writes the file, and returns the verdict for all agents."""
        hosts = {node: about["host"] for node, about in self.nodes.items()}
        # The name of a node that has not announced itself is unknown.
        names = {**unique_names(hosts), **{node: f"group rank {node}" for node in self.missing}}
        verdict = judge(names, self.missing, passes, self.job.seconds, self.out)
        print("\n".join(verdict.lines), flush=True)
        listed = [each for each in verdict.named if each.node in hosts]
        try:
            write(self.out, "".join(f"{hosts[each.node]} {each.reason}\n" for each in listed))
        except OSError as error:
            return f"{self.out} cannot be written on {host_name()}: {error.strerror} (give another path with `--out`)"
        return GOOD if verdict.is_good else f"not all nodes are good: {host_name()} has printed the report"


def attempt(partners: Sequence[int], results: Sequence[Dict[str, Any]]) -> Attempt:
    """Returns the attempt of a node, whose workers have these results."""
    errors = [result for result in results if "error" in result]
    if not errors:
        return Attempt(tuple(partners), max(result["seconds"] for result in results))
    # If a worker has failed by itself, the others of the node have waited for it.
    first = min(errors, key=lambda result: (not result.get("is_alone", False), "no answer" in result["error"]))
    return Attempt(tuple(partners), None, first["error"], first.get("is_alone", False))


def write(path: str, text: str) -> None:
    """Replaces a file, so that a reader sees the old or the new content."""
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "w") as file:
            file.write(text)
        os.replace(draft, path)
    except OSError:
        if os.path.exists(draft):
            os.unlink(draft)
        raise


def host_name() -> str:
    """Returns the name of this machine. In a container, NODE_NAME may have it."""
    return os.environ.get("NODE_NAME") or socket.gethostname()


def check(job: Job, backend: Optional[str], out: str) -> str:
    """Takes part in the check. Returns the verdict."""
    if job.local_rank == 0:
        cuda = backend is None and bool(limited(has_cuda, job.seconds).get("cuda"))
        job.set(f"node/{job.node}", {"host": host_name(), "workers": job.local_size, "cuda": cuda})
    coordinator = Coordinator(job, backend, out) if job.is_first else None
    passes: List[Dict[int, Attempt]] = []
    groups: List[Group] = []
    for number in (1, 2):
        if coordinator is not None:
            if number == 1:
                groups = neighbours(sorted(coordinator.nodes))
            else:
                first = passes[0] if passes else {}
                groups = changed(groups, {node: each.seconds for node, each in first.items()})
            coordinator.begin(number, groups)
        if not take_part(job, number):
            continue
        if coordinator is not None:
            passes.append(coordinator.attempts(number, groups))
    if coordinator is not None:
        job.set("verdict", coordinator.report(passes))
    verdict: str = job.get("verdict", 2 * (job.seconds + MARGIN) + MARGIN)
    # The first worker may serve the store.
    job.set(f"left/{job.node}/{job.local_rank}", True)
    if coordinator is not None:
        workers = {node: about["workers"] for node, about in coordinator.nodes.items()}
        job.collect([f"left/{node}/{rank}" for node, size in workers.items() for rank in range(size)], MARGIN)
    return verdict


def import_torch(seconds: float) -> None:
    """Imports torch in the time that nodes may differ in starting, or raises: other nodes do not wait longer for this one.

    A library that hangs, for example on a dead file system, does not let Python raise. Its process is ended by a thread that needs no
    Python, and the job fails. This is late enough for the report of the others.
    """
    limit = seconds + MARGIN

    def expire(_number: int, _frame: Any) -> None:
        raise Expired(f"torch was not imported in {limit:g} s")

    faulthandler.dump_traceback_later(longest(seconds), exit=True)
    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        imported("torch.distributed")
    except ImportError as error:
        raise RuntimeError(f"torch cannot be imported: {error}") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


def longest(seconds: float) -> float:
    """Returns the seconds that a check may take: nodes announce themselves, work in two passes, and leave. `check.rs` has it too."""
    return 3 * (seconds + MARGIN) + 2 * MARGIN


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend")
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--verdict", required=True)
    # `ragent check` has examined them. Launch methods add others.
    flags, _ = parser.parse_known_args()
    # The library warns about each peer whose name it cannot resolve.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Threads that a library has started do not stop a child from using torch.
    warnings.simplefilter("ignore", DeprecationWarning)
    host = host_name()
    try:
        import_torch(flags.timeout)
        verdict = check(Job(flags.timeout), flags.backend, flags.out)
    except (Exception, Expired) as error:
        # The others see that this node does not answer. It is not a failure of the job.
        store = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        verdict = f"failed to check {host} with the other nodes: {described(error)} (the store of the job is at {store})"
        if os.environ["RANK"] == "0":
            sys.exit(f"error: {verdict}")
        if os.environ["LOCAL_RANK"] != "0":
            print(f"error: {verdict}", file=sys.stderr, flush=True)
    if os.environ["LOCAL_RANK"] == "0":
        write(flags.verdict, verdict)
    # Threads of torch may abort a process that ends in the usual way.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
