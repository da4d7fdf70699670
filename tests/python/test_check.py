"""`ragent check` forms the right pairs, and names the right nodes."""

import importlib
import importlib.util
import itertools
import os
import subprocess
import sys
import time

import pytest
from support import REPOSITORY

PAIRS = REPOSITORY / "agent/src/commands/check/pairs.py"
SPEC = importlib.util.spec_from_file_location("pairs", PAIRS)
pairs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pairs)

LIMIT = 120
SILENT = "no answer in 120 s"


class Nodes:
    """Nodes that are bad, slow or good, and links that are cut. A group is as fast as its slowest node."""

    def __init__(self, size, bad=(), alone=(), slow=(), cut=(), missing=()):
        self.size, self.bad, self.alone, self.slow, self.missing = size, set(bad), set(alone), set(slow), list(missing)
        self.cut = [set(link) for link in cut]

    def attempts(self, groups):
        return {node: self._attempt(node, group) for group in groups for node in group}

    def _attempt(self, node, group):
        partners = tuple(each for each in group if each != node)
        if node in self.alone:
            return pairs.Attempt(partners, None, "torch finds no GPU", True)
        links = [set(link) for link in itertools.combinations(group, 2)]
        if (self.bad | self.alone) & set(group) or any(link in self.cut for link in links):
            return pairs.Attempt(partners, None, SILENT)
        # No two pairs take the same time.
        return pairs.Attempt(partners, (41.0 if self.slow & set(group) else 12.0) + min(group) / 100)

    def verdict(self):
        """Checks the nodes, as the first worker does."""
        there = [node for node in range(self.size) if node not in self.missing]
        first = pairs.neighbours(there)
        passes = [self.attempts(first)] if first else []
        if passes:
            second = pairs.changed(first, {node: each.seconds for node, each in passes[0].items()})
            assert sorted(node for group in second for node in group) == there
            passes.append(self.attempts(second))
        names = {node: f"n{node}" for node in range(self.size)}
        return pairs.judge(names, self.missing, passes, LIMIT, "bad-hosts")


def named(verdict):
    return [each.node for each in verdict.named]


@pytest.mark.parametrize("size", range(2, 20))
def test_pairs_change(size):
    """All nodes are in one group of each pass. Groups have two nodes, and one group of an odd number three. No pair stays together."""
    first = pairs.neighbours(range(size))
    second = pairs.changed(first, {node: 1.0 + node // 2 for node in range(size)})
    for groups in (first, second):
        assert sorted(node for group in groups for node in group) == list(range(size))
        assert sorted(map(len, groups)) == [2] * (size // 2 - size % 2) + [3] * (size % 2)
    if size >= 4 and size % 2 == 0:
        assert not {frozenset(group) for group in first} & {frozenset(group) for group in second}


def test_second_pass():
    """The fastest node works with the slowest one, and a node that has failed with one that has not."""
    first = pairs.neighbours(range(8))
    seconds = {0: 5.0, 1: 5.0, 2: None, 3: None, 4: 1.0, 5: 1.0, 6: 9.0, 7: 9.0}
    assert pairs.changed(first, seconds) == [[4, 3], [5, 2], [1, 7], [6, 0]]


@pytest.mark.parametrize("size", [4, 6, 7, 8, 9, 16])
def test_bad_node_is_named(size):
    """Of one bad node, only this node is named, wherever it is."""
    for bad in range(size):
        verdict = Nodes(size, bad=[bad]).verdict()
        assert named(verdict) == [bad], verdict
        assert not verdict.is_good
        assert verdict.lines[0].startswith(f"n{bad}   failed twice: with n")
        assert verdict.lines[-1] == f"{size - 1} nodes are good; the others are in bad-hosts"
        assert len(verdict.lines) == 2


@pytest.mark.parametrize("size", range(2, 10))
def test_several_bad_nodes(size):
    """No good node is named, whichever nodes are bad. A bad node is named, or the report says that it could not be judged."""
    for count in range(1, size + 1):
        for bad in itertools.combinations(range(size), count):
            verdict = Nodes(size, bad=bad).verdict()
            assert set(named(verdict)) <= set(bad), verdict
            assert not verdict.is_good
            rest = [line for line in verdict.lines if "could not be judged" in line or "failed together twice" in line]
            if "all nodes have failed" not in verdict.lines[0]:
                assert all(node in named(verdict) or f"n{node}" in "".join(rest) for node in bad), verdict
            has_good = any(line.endswith("the others are in bad-hosts") for line in verdict.lines)
            assert not (has_good and rest), verdict


def test_node_with_bad_partners():
    """A good node whose two partners are bad is not named."""
    verdict = Nodes(8, bad=[0, 2, 5]).verdict()
    assert named(verdict) == [0, 2, 5]
    assert verdict.lines[-2:] == [
        "n4 could not be judged: its partners n2 and n5 also failed twice. Check it again with other nodes",
        "4 nodes are good; bad nodes are in bad-hosts",
    ]


def test_bad_nodes_that_meet():
    """Two bad nodes that were partners are named, as each has failed with a good one too."""
    assert named(Nodes(8, bad=[2, 3]).verdict()) == [2, 3]


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8, 9, 16])
def test_slow_node_is_named(size):
    """Of one slow node, only this node is named. The good one of two passes counts for its partners."""
    for slow in range(size):
        verdict = Nodes(size, slow=[slow]).verdict()
        # In a group of three of five nodes, a slow node can meet one of its partners again.
        assert slow in named(verdict)
        assert named(verdict) == [slow] or size == 5, verdict
        assert "slow: 41 s, median 12 s" in verdict.lines[0]


def test_several_nodes():
    """The report has a line for each node, and one about the others."""
    verdict = Nodes(8, bad=[3], slow=[5]).verdict()
    assert verdict.lines == [
        f"n3   failed twice: with n1, n2 ({SILENT})",
        "n5   slow: 41 s, median 12 s",
        "6 nodes are good; the others are in bad-hosts",
    ]
    assert [each.reason for each in verdict.named] == [f"failed twice: with n1, n2 ({SILENT})", "slow: 41 s, median 12 s"]
    verdict = Nodes(10, bad=[0, 1, 2]).verdict()
    assert named(verdict) == [0, 1, 2]


def test_all_nodes_are_good():
    for size in (2, 3, 4, 5, 8):
        verdict = Nodes(size).verdict()
        assert verdict == pairs.Verdict([], [f"{size} nodes are good"], True)


def test_cut_link():
    """A link between two good nodes is mentioned, and neither node is named."""
    verdict = Nodes(4, cut=[(2, 3)]).verdict()
    assert verdict == pairs.Verdict(
        [],
        [f"n2 and n3 failed together in the first pass only ({SILENT}): the link between them may be bad", "4 nodes are good"],
        True,
    )


@pytest.mark.parametrize("size", [6, 8, 9, 16])
def test_node_that_only_reaches_the_first(size):
    """A node that reaches only the first one, which all nodes reach, is bad: in the second pass it works with another one."""
    for bad in range(2, size):
        cut = [(bad, other) for other in range(1, size) if other != bad]
        assert named(Nodes(size, cut=cut).verdict()) == [bad]


@pytest.mark.parametrize("size, text", [(2, "n0 and n1"), (3, "n0, n1 and n2")])
def test_few_nodes(size, text):
    """Of two or three nodes, the pair is named, unless one of them fails without the others."""
    verdict = Nodes(size, bad=[1]).verdict()
    assert verdict == pairs.Verdict(
        [],
        [
            f"{text} failed together twice ({SILENT})",
            "with three or fewer nodes, nothing shows which of them is bad: check them again, together with other nodes",
        ],
        False,
    )
    verdict = Nodes(size, alone=[1]).verdict()
    assert named(verdict) == [1]
    others, partners = {2: ("n0", "n0"), 3: ("n0 and n2", "n0, n2")}[size]
    assert verdict.lines[0] == f"n1   failed twice: with {partners} (torch finds no GPU)"
    assert verdict.lines[1:] == [f"{others} could not be checked, because n1 failed: check again without it", "bad nodes are in bad-hosts"]
    assert named(Nodes(size, slow=[1]).verdict()) == []


def test_error_of_few_nodes():
    """Of two nodes that fail together, the report has the error of the one that has one."""
    broken = pairs.Attempt((0,), None, "no such interface")
    passes = [{0: pairs.Attempt((1,), None, SILENT), 1: broken}] * 2
    verdict = pairs.judge({0: "n0", 1: "n1"}, [], passes, LIMIT, "bad-hosts")
    assert verdict.lines[0] == "n0 and n1 failed together twice (on n1: no such interface)"


def test_own_error_is_shown():
    """An error of the node itself is shown, not that of its partner."""
    verdict = Nodes(4, alone=[2]).verdict()
    assert verdict.lines[0] == "n2   failed twice: with n0, n3 (torch finds no GPU)"


def test_missing_nodes():
    """A node that does not answer is bad, and the others are checked."""
    verdict = Nodes(5, missing=[1]).verdict()
    assert named(verdict) == [1] and not verdict.is_good
    assert verdict.lines == [f"n1   {SILENT}, its own output may have the reason", "4 nodes are good"]
    verdict = Nodes(2, missing=[1]).verdict()
    assert verdict.lines[1:] == ["no node was checked, since fewer than two have answered"] and not verdict.is_good


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_all_nodes_have_failed(size):
    """If all nodes fail, none is named, and the report says where to look first."""
    verdict = Nodes(size, bad=range(size)).verdict()
    assert named(verdict) == [] and not verdict.is_good
    assert size < 4 or verdict.lines[0].startswith(f"all nodes have failed ({SILENT}): look first for what they have in common")
    verdict = Nodes(size, alone=range(size)).verdict()
    assert named(verdict) == [] and not verdict.is_good
    assert len(verdict.lines) == 1 and verdict.lines[0].startswith("all nodes have failed (on n0: torch finds no GPU): look first")


class OldStore:
    """The store of a job. It has only what torch 2.2 has."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def wait(self, keys, limit):
        if not set(keys) <= set(self.values):
            raise RuntimeError("Socket Timeout")

    def compare_set(self, key, expected, _desired):
        return self.values.get(key, expected.encode())


def test_values_are_collected():
    """Values that are missing when the time is over are left out."""
    job = object.__new__(pairs.Job)
    job.store = OldStore()
    job.set("a", {"seconds": 1.0})
    job.set("b", None)
    assert job.collect(["a", "b"], 1) == {"a": {"seconds": 1.0}, "b": None}
    assert job.collect(["a", "b", "c"], 1) == {"a": {"seconds": 1.0}, "b": None}


def test_names():
    """Nodes on one host have their group ranks in their names."""
    assert pairs.unique_names({0: "a", 1: "b", 2: "a"}) == {0: "a (group rank 0)", 1: "b", 2: "a (group rank 2)"}


def test_workers_of_a_node():
    """A node is as fast as its slowest worker. The error of the worker that has failed by itself counts."""
    assert pairs.attempt([1], [{"seconds": 1.0}, {"seconds": 2.0}]) == pairs.Attempt((1,), 2.0)
    results = [{"error": SILENT}, {"error": "Connection closed"}, {"error": "no GPU", "is_alone": True}, {"seconds": 1.0}]
    assert pairs.attempt([1], results) == pairs.Attempt((1,), None, "no GPU", True)
    assert pairs.attempt([1], results[:2]).error == "Connection closed"


def test_child_is_limited():
    """A child that hangs, dies or raises becomes an error, and its output is not shown."""
    assert pairs.limited(lambda report: report({"seconds": 1.0}), 60) == {"seconds": 1.0}
    assert pairs.limited(lambda report: time.sleep(3600), 0.1) == {"error": "no answer in 0.1 s"}
    assert pairs.limited(lambda report: os.kill(os.getpid(), 15), 60) == {"error": "killed by signal 15"}
    assert pairs.limited(lambda report: os._exit(3), 60) == {"error": "exited with 3"}

    def raises(report):
        raise pairs.OwnFailure("no GPU\nmore")

    assert pairs.limited(raises, 60) == {"error": "no GPU", "is_alone": True}

    def fails_later(report):
        report({"seconds": 1.0})
        raise RuntimeError("a partner has ended")

    assert pairs.limited(fails_later, 60) == {"seconds": 1.0}


def test_import_is_limited(monkeypatch):
    """An import of torch that hangs or fails ends with a message."""
    monkeypatch.setattr(pairs, "MARGIN", 0)
    monkeypatch.setattr(pairs, "imported", lambda name: time.sleep(3600))
    with pytest.raises(pairs.Expired, match="torch was not imported in 0.1 s"):
        pairs.import_torch(0.1)
    monkeypatch.setattr(pairs, "imported", lambda name: importlib.import_module("no_such_module"))
    with pytest.raises(RuntimeError, match="torch cannot be imported: No module named 'no_such_module'"):
        pairs.import_torch(60)


def test_import_that_hangs_in_a_library():
    """An import that holds the interpreter, as a library that is loaded from a dead file system does, ends the worker."""
    script = f"""
import ctypes, importlib.util
spec = importlib.util.spec_from_file_location("pairs", {str(PAIRS)!r})
pairs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pairs)
pairs.MARGIN = 0
mutex, lock = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock
pairs.imported = lambda name: (lock(mutex), lock(mutex))
pairs.import_torch(0.2)
"""
    # No signal interrupts the second lock.
    end = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=60)
    assert end.returncode == 1
    assert "Timeout (0:00:00.6" in end.stderr and "in import_torch" in end.stderr


def test_file_is_replaced(tmp_path):
    """The file of bad nodes is replaced as a whole. If it cannot be written, nothing is left behind."""
    path = tmp_path / "bad-hosts"
    path.write_text("old")
    pairs.write(str(path), "n3 slow\n")
    assert path.read_text() == "n3 slow\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("")
    with pytest.raises(OSError):
        pairs.write(str(tmp_path / "folder"), "")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bad-hosts", "folder"]
