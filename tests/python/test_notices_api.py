"""`ragent.notice`, `should_save` and `saved`: a checkpoint of all ranks before a node is taken."""

import importlib
import json
import os
import pathlib
import random
import re
import socket
import sys
import tempfile
import textwrap
import threading
import warnings

import pytest
from support import DEADLINE, OTHER_USER, AgentOfWorker, free_port

NOTICE = {
    "schema": 1, "notice": 3, "kind": "leave", "hosts": ["node4"], "here": False, "until": 1764104000.5, "text": "SIGTERM"
}  # fmt: skip


@pytest.fixture
def ragent(monkeypatch):
    """The module as in a new process: it has seen no notice, and reported nothing."""
    for name in [name for name in sys.modules if name == "ragent" or name.startswith("ragent.")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("ragent")


@pytest.fixture
def agent(sandbox, monkeypatch):
    """The agent of this process, which has its variables."""
    with AgentOfWorker(sandbox.temporary) as agent:
        for name, value in agent.environment.items():
            monkeypatch.setenv(name, value)
        yield agent


def modules(ragent):
    """The modules with the state of this process."""
    return (importlib.import_module(f"ragent.{name}") for name in ("_notices", "_saves", "_steps"))


# The file


def test_fields(ragent, agent, monkeypatch):
    """A notice has the fields of the file. They cannot be changed."""
    agent.give(NOTICE)
    notice = ragent.notice()
    assert notice == ragent.Notice(3, "leave", ("node4",), False, 1764104000.5, "SIGTERM")
    with pytest.raises(AttributeError):
        notice.kind = "end"
    notices, _, _ = modules(ragent)
    for now, left in [(1764103990.0, 10.5), (1764104001.0, 0.0)]:
        monkeypatch.setattr(notices.time, "time", lambda now=now: now)
        assert notice.seconds_left == left


def test_optional_fields(ragent, agent):
    """A notice of the kind `save` has no end. Fields and kinds that this module does not know are no error."""
    agent.give({"schema": 1, "notice": 2**53 - 1, "kind": "another", "new": [1]})
    assert ragent.notice() == ragent.Notice(2**53 - 1, "another", (), False, None, "")
    assert ragent.notice().seconds_left is None


def test_no_notice(ragent, monkeypatch, tmp_path):
    """Without an agent or a file there is no notice, and no warning."""
    (tmp_path / "file").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (None, "", tmp_path / "missing", tmp_path / "file/below"):
            monkeypatch.delenv("RAGENT_NOTICE_FILE", raising=False)
            if path is not None:
                monkeypatch.setenv("RAGENT_NOTICE_FILE", str(path))
            assert ragent.notice() is None


def test_replaced_file(ragent, agent):
    """Each call returns the newest notice, and none when the file is removed."""
    for number in range(1, 50):
        agent.give({**NOTICE, "notice": number})
        assert ragent.notice().notice == number
    agent.notice_file.unlink()
    assert ragent.notice() is None
    agent.give(NOTICE)
    assert ragent.notice().notice == 3


def test_same_time_and_inode(ragent, agent):
    """A young file is read again although it looks the same: two replacements may have the same time and inode."""
    for number in (3, 4):
        agent.notice_file.write_text(json.dumps({**NOTICE, "notice": number}))
        os.utime(agent.notice_file, (2e9, 2e9))
        assert ragent.notice().notice == number


def test_unchanged_file(ragent, agent, monkeypatch):
    """A file that has not changed is not read again."""
    agent.give(NOTICE)
    os.utime(agent.notice_file, (1e9, 1e9))
    first = ragent.notice()
    notices, _, _ = modules(ragent)
    monkeypatch.setattr(notices, "open", None, raising=False)
    assert ragent.notice() is first


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[" * 10_000,
        b"null",
        b"[]",
        *(
            json.dumps({**NOTICE, **wrong}).encode()
            for wrong in [
                {"schema": 2},
                {"schema": None},
                {"notice": 0},
                {"notice": True},
                {"notice": 2**53},
                {"notice": 3.0},
                {"kind": None},
                {"kind": 1},
                {"hosts": "node4"},
                {"hosts": [4]},
                {"here": 1},
                {"until": "soon"},
                {"until": float("nan")},
                {"until": float("inf")},
                {"text": 1},
            ]
        ),
    ],
)
def test_unknown_content(ragent, agent, text):
    """A file that this module does not understand is no notice. There is one warning, with the cause."""
    agent.give(text)
    with pytest.warns(RuntimeWarning, match=f"failed to read the notice in `{agent.notice_file}`: .*: install") as caught:
        for _ in range(3):
            assert ragent.notice() is None
            assert not ragent.should_save(0)
        agent.give(b"{")
        assert ragent.notice() is None
    assert len(caught) == 1 and caught[0].filename == __file__
    agent.give(NOTICE)
    assert ragent.notice().notice == 3


def test_file_that_cannot_be_read(ragent, agent):
    """A file that exists and cannot be read is no notice either. There is a warning."""
    agent.notice_file.mkdir()
    with pytest.warns(RuntimeWarning, match="failed to read the notice"):
        assert ragent.notice() is None


@pytest.mark.parametrize("change", ["owner", "link", "pipe"])
def test_file_of_another_user(ragent, agent, change):
    """A notice counts only in a file of this user or root."""
    agent.give(NOTICE)
    if change == "owner":
        if os.geteuid():
            pytest.skip("only root can give a file to another user")
        os.chown(agent.notice_file, OTHER_USER, -1)
    elif change == "link":
        agent.notice_file.rename(agent.notice_file.with_suffix(".other"))
        agent.notice_file.symlink_to(agent.notice_file.with_suffix(".other"))
    else:
        agent.notice_file.unlink()
        os.mkfifo(agent.notice_file)
    with pytest.warns(RuntimeWarning, match="failed to read the notice"):
        assert ragent.notice() is None
    agent.give(NOTICE)
    assert ragent.notice().notice == 3


# Reports of checkpoints


def test_reports(ragent, agent):
    """A report is one datagram, with a line for each value that is given."""
    for n, options, text in [
        (0, {}, "X_RAGENT_SAVED=0"),
        (2**53 - 1, {"whole": True}, f"X_RAGENT_SAVED={2**53 - 1}\nX_RAGENT_SAVED_WHOLE=1"),
        (120, {"seconds": 9.8}, "X_RAGENT_SAVED=120\nX_RAGENT_SAVE_MS=9800"),
        (120, {"seconds": 0, "whole": True}, "X_RAGENT_SAVED=120\nX_RAGENT_SAVED_WHOLE=1\nX_RAGENT_SAVE_MS=0"),
    ]:
        assert ragent.saved(n, **options) is None
        assert agent.next() == text


@pytest.mark.parametrize("has_agent", [True, False])
def test_wrong_numbers(ragent, agent, monkeypatch, has_agent):
    """A number out of range is an error, also without an agent. The error names one value."""
    if not has_agent:
        monkeypatch.delenv("RAGENT_SOCKET")
    for step in (-1, 2**53):
        with pytest.raises(ValueError, match=f"failed to report a checkpoint: step {step} is not a whole number"):
            ragent.saved(step, seconds=1)
    for seconds in (-0.1, float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match=f"failed to report a checkpoint: seconds {re.escape(repr(seconds))} is not a number"):
            ragent.saved(1, seconds=seconds)


@pytest.mark.parametrize("args", [{"step": 1.0}, {"step": "1"}, {"step": None}, {"step": 1, "seconds": "2"}, {"step": 1, "seconds": []}])
def test_wrong_types(ragent, agent, args):
    """A step that is not a whole number is an error, and a time that is not a number."""
    with pytest.raises(TypeError, match="failed to report a checkpoint"):
        ragent.saved(**args)


def test_options_have_names(ragent, agent):
    """A value without a name after the step is an error: it could be taken for another one."""
    for call in (ragent.step, ragent.saved, ragent.should_save):
        with pytest.raises(TypeError, match="positional argument"):
            call(10, True)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({"step": -1}, ValueError),
        ({"step": 2**53}, ValueError),
        ({"step": 1, "every": 0}, ValueError),
        ({"step": 1.0}, TypeError),
        ({"step": 1, "every": "10"}, TypeError),
    ],
)
def test_wrong_questions(ragent, args, error):
    """A wrong step or interval is an error, also without an agent. The error names one value."""
    name, value = list(args.items())[-1]
    with pytest.raises(error, match=f"failed to ask for a checkpoint: {name} {value!r} is not a whole number"):
        ragent.should_save(**args)


def test_no_agent(ragent, monkeypatch, tmp_path):
    """Without an agent, or with one that has ended, nothing is reported or asked for."""
    for path in (None, "", str(tmp_path / "missing"), "x" * 500):
        monkeypatch.delenv("RAGENT_SOCKET", raising=False)
        if path is not None:
            monkeypatch.setenv("RAGENT_SOCKET", path)
        ragent.saved(1)
        assert not ragent.should_save(1)


def test_notice_that_the_script_has_seen(ragent, agent):
    """A checkpoint answers the newest notice that the script has read, not one that has come while it was saved."""
    ragent.saved(1)
    agent.give(NOTICE)
    ragent.saved(2)
    ragent.notice()
    ragent.saved(3)
    agent.give({**NOTICE, "notice": 4})
    ragent.saved(4)
    expected = ["X_RAGENT_SAVED=1", "X_RAGENT_SAVED=2", "X_RAGENT_SAVED=3\nX_RAGENT_NOTICE=3", "X_RAGENT_SAVED=4\nX_RAGENT_NOTICE=3"]
    assert [agent.next() for _ in expected] == expected


def test_notice_that_was_answered(ragent, agent):
    """In a script that asks, a checkpoint answers the newest notice with the answer True, from the step of this answer on."""
    assert not ragent.should_save(1)
    agent.give(NOTICE)
    # Another part of the script prints it.
    assert ragent.notice().notice == 3
    ragent.saved(2)
    assert ragent.should_save(3)
    ragent.saved(2, seconds=1)
    ragent.saved(3, whole=True)
    ragent.saved(9)
    agent.give({**NOTICE, "notice": 5})
    ragent.saved(10)
    assert ragent.should_save(11)
    ragent.saved(11)
    expected = [
        "X_RAGENT_SAVED=2",
        "X_RAGENT_SAVED=2\nX_RAGENT_SAVE_MS=1000",
        "X_RAGENT_SAVED=3\nX_RAGENT_SAVED_WHOLE=1\nX_RAGENT_NOTICE=3",
        "X_RAGENT_SAVED=9\nX_RAGENT_NOTICE=3",
        "X_RAGENT_SAVED=10\nX_RAGENT_NOTICE=3",
        "X_RAGENT_SAVED=11\nX_RAGENT_NOTICE=5",
    ]
    assert [agent.next() for _ in expected] == expected


def test_busy_agent(ragent, sandbox, monkeypatch):
    """A report of a checkpoint waits until the agent has read others, unlike the report of a step."""
    path = str(sandbox.temporary / "busy")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
        reader.bind(path)
        reader.settimeout(DEADLINE)
        monkeypatch.setenv("RAGENT_SOCKET", path)
        _, _, steps = modules(ragent)
        monkeypatch.setattr(steps, "_PATIENCE", DEADLINE)
        waits, send = threading.Event(), steps._send_patiently
        monkeypatch.setattr(steps, "_send_patiently", lambda *args: [waits.set(), send(*args)])
        for n in range(5000):
            ragent.step(n)
        thread = threading.Thread(target=ragent.saved, args=(6000,))
        thread.start()
        assert waits.wait(DEADLINE)
        while reader.recv(4096) != b"X_RAGENT_SAVED=6000":
            pass
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_agent_that_does_not_read(ragent, sandbox, monkeypatch):
    """A report of a checkpoint does not wait forever."""
    path = str(sandbox.temporary / "stopped")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
        reader.bind(path)
        monkeypatch.setenv("RAGENT_SOCKET", path)
        _, _, steps = modules(ragent)
        monkeypatch.setattr(steps, "_PATIENCE", 0.01)
        for n in range(20):
            ragent.saved(n)


# The measured cost


class Clock:
    """The times at which the script reports steps."""

    def __init__(self, ragent, agent, monkeypatch):
        self.now = 1000.0
        self.ragent, self.agent = ragent, agent
        _, _, steps = modules(ragent)
        monkeypatch.setattr(steps, "_clock", lambda: self.now)

    def step(self, n, seconds=1.0):
        """Reports a step some seconds after the one before, and returns the lines after the first one."""
        self.now += seconds
        self.ragent.step(n)
        lines = self.agent.next().split("\n")
        assert lines.pop(0) == f"X_RAGENT_STEP={n}"
        return lines

    def saved(self, n, **options):
        self.ragent.saved(n, **options)
        assert self.agent.next().split("\n")[0] == f"X_RAGENT_SAVED={n}"


@pytest.fixture
def clock(ragent, agent, monkeypatch):
    return Clock(ragent, agent, monkeypatch)


def test_measured_cost(clock):
    """The cost of a checkpoint is the interval between two steps less a usual one, in the datagram of the second step."""
    assert [clock.step(n) for n in range(5)] == [[]] * 5
    clock.saved(4)
    assert clock.step(5, 10.8) == ["X_RAGENT_SAVE_MS=9800"]
    assert clock.step(6) == []
    # A script may save before it reports the step.
    clock.saved(7)
    assert clock.step(7, 3.0) == ["X_RAGENT_SAVE_MS=2000"]
    # Faster than usual.
    clock.saved(7)
    assert clock.step(8, 0.5) == ["X_RAGENT_SAVE_MS=0"]


def test_usual_step(clock):
    """A usual step is the median of the last 32 intervals without a checkpoint. Fewer than three are not enough."""
    for n, seconds, is_known in [(0, 1.0, False), (2, 1.0, False), (4, 1.0, False), (6, 4.0, True)]:
        clock.step(n, seconds)
        clock.saved(n)
        assert clock.step(n + 1, 100.0) == (["X_RAGENT_SAVE_MS=99000"] if is_known else [])
    for n in range(10, 26):
        clock.step(n, 2.0)
    for n in range(26, 42):
        clock.step(n, 3.0)
    clock.saved(41)
    assert clock.step(42, 10.0) == ["X_RAGENT_SAVE_MS=7500"]
    clock.step(43, 3.0)
    clock.saved(43)
    assert clock.step(44, 10.0) == ["X_RAGENT_SAVE_MS=7000"]


def test_cost_that_the_script_gives(clock):
    """With `seconds`, nothing is measured, and the interval is not a usual one."""
    for n in range(4):
        clock.step(n)
    for n in range(4, 40):
        clock.saved(n - 1, seconds=5)
        assert clock.step(n, 9.0) == []
    clock.saved(39)
    assert clock.step(40, 2.0) == ["X_RAGENT_SAVE_MS=1000"]


def test_same_step_again(clock):
    """The report of a step that was reported before ends no interval."""
    for n in range(4):
        clock.step(n)
    clock.saved(3)
    assert clock.step(3, 0.5) == []
    assert clock.step(4, 3.5) == ["X_RAGENT_SAVE_MS=3000"]


def test_unknown_cost(clock):
    """Without a step before or after it, the cost of a checkpoint is unknown."""
    clock.saved(0)
    for n in range(5):
        assert clock.step(n) == []


def test_cost_that_was_not_sent(ragent, clock, monkeypatch, tmp_path):
    """A cost is sent with a later step if the agent does not take the report, but not after another checkpoint."""
    path = os.environ["RAGENT_SOCKET"]
    for n in range(4):
        clock.step(n)
    for has_another in (False, True):
        clock.saved(3)
        monkeypatch.setenv("RAGENT_SOCKET", str(tmp_path / "missing"))
        clock.now += 5.0
        ragent.step(10)
        monkeypatch.setenv("RAGENT_SOCKET", path)
        if has_another:
            clock.saved(3, seconds=1)
        assert clock.step(11) == ([] if has_another else ["X_RAGENT_SAVE_MS=4000"])
        assert clock.step(12) == []


# Without torch.distributed


def test_answers_of_one_process(ragent, agent):
    """Without torch.distributed, each notice of this node gives True once, at any step."""
    assert not ragent.should_save(1)
    agent.give(NOTICE)
    assert [n for n in range(7, 40) if ragent.should_save(n)] == [7]
    agent.give({**NOTICE, "kind": "end"})
    assert not any(ragent.should_save(n) for n in range(40, 80))
    agent.give({**NOTICE, "notice": 4})
    assert [n for n in range(81, 100) if ragent.should_save(n, every=5)] == [81]
    agent.give({**NOTICE, "notice": 2})
    assert not any(ragent.should_save(n) for n in range(100, 140))


def test_script_without_torch(sandbox):
    """A script without torch gets an answer, and torch is not imported for it."""
    with AgentOfWorker(sandbox.temporary) as agent:
        agent.give(NOTICE)
        run = sandbox.run(
            """
            import sys
            import ragent
            print([n for n in range(30) if ragent.should_save(n)])
            ragent.saved(0)
            assert "torch" not in sys.modules
            """,
            env=agent.environment,
        )
        assert run.succeeds().stdout == "[0]\n"
        assert agent.next() == "X_RAGENT_SAVED=0\nX_RAGENT_NOTICE=3"


def test_script_without_an_agent(sandbox):
    """A script that asks and reports runs unchanged without an agent."""
    code = """
        import ragent
        for n in range(3):
            if ragent.should_save(n) or n == 1:
                ragent.saved(n)
        print(ragent.notice())
    """
    assert sandbox.run(code).succeeds().stdout == "None\n"


def test_missing_frameworks(sandbox):
    """The module works where no framework is installed. A callback for one is an error that names it."""
    sandbox.run(
        """
        import importlib, sys
        for name in ("transformers", "lightning", "pytorch_lightning"):
            sys.modules[name] = None
        import ragent, ragent.integrations
        assert not ragent.should_save(1)
        for name in ("transformers", "lightning"):
            try:
                importlib.import_module("ragent.integrations." + name)
            except ModuleNotFoundError as error:
                assert name in str(error), error
            else:
                raise SystemExit(name)
        """
    ).succeeds()


# With torch.distributed

HEAD = """
import datetime, json, os, sys
import torch
import torch.distributed as dist
import ragent

def say(*words):
    # One call writes the line, as all ranks share the stream.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def join(name, rank=int(os.environ["RANK"]), size=int(os.environ["WORLD_SIZE"])):
    file, patience = "file://" + os.path.abspath(name), datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=size, timeout=patience)

"""


class Ranks:
    """Ranks of a job on this machine, each on a node of its own. They run a script: the part after `HEAD`, or a path."""

    def __init__(self, sandbox, size, script, env=None, words=(), **options):
        path = script if isinstance(script, pathlib.Path) else sandbox.write("ranks.py", HEAD + textwrap.dedent(script))
        shared = {"WORLD_SIZE": str(size), "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", **(env or {})}
        self._folder = tempfile.TemporaryDirectory(dir=sandbox.temporary)
        self.agents, self.runs = [], []
        for rank in range(size):
            folder = pathlib.Path(self._folder.name) / str(rank)
            folder.mkdir()
            agent = AgentOfWorker(folder)
            self.agents.append(agent)
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
            self.runs.append(sandbox.start(path, *words, env={**variables, **agent.environment}, **options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for run in self.runs:
            if run.process.poll() is None:
                # The test has failed.
                run.process.kill()
                run.finish()
        for agent in self.agents:
            agent.close()
        self._folder.cleanup()

    def succeed(self):
        for run in self.runs:
            run.succeeds()


ROUNDS = """
for number, (size, every, places) in enumerate(json.loads(os.environ["ROUNDS"])):
    rank, step, left = int(os.environ["RANK"]), 0, None
    if rank >= size:
        continue
    join(f"group{number}", size=size)
    answers = []
    while left != 0:
        step += 1
        if step in places:
            say("round", number, "step", step)
        if ragent.should_save(step, every=every):
            ragent.saved(step)
            answers.append(step)
            say("round", number, "rank", rank, "answer", len(answers), "at", step)
            if len(answers) == 2:
                left = 5 * every
        elif left is not None:
            left -= 1
    say("round", number, "rank", rank, "answers", *answers)
    dist.destroy_process_group()
"""


@pytest.mark.usefixtures("needs_torch")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_same_step_on_all_ranks(sandbox, seed):
    """A notice to any node, at any moment, gives True on all ranks at the same step, once. So does the next one.

    The process group is destroyed and made again, with more or fewer of the ranks. These have answered other notices.
    """
    draw = random.Random(seed)
    rounds = []
    for _ in range(10):
        size, every = draw.randint(2, 4), draw.choice([1, 3, 10])
        rounds.append((size, every, [draw.randint(1, 500)]))
    with Ranks(sandbox, 4, ROUNDS, {"ROUNDS": json.dumps(rounds)}) as ranks:
        notice = 0
        for number, (size, every, (place,)) in enumerate(rounds):
            expected = []
            for turn in range(2):
                # The notice may come at any moment after this line.
                if turn == 0:
                    ranks.runs[draw.randrange(size)].prints(f"round {number} step {place}")
                owner = draw.randrange(size)
                notice += draw.randint(1, 3)
                ranks.agents[owner].give({**NOTICE, "notice": notice, "kind": draw.choice(["save", "leave", "end", "new"])})
                lines = [
                    ranks.runs[rank].prints(f"round {number} rank {rank} answer {turn + 1} at") for rank in range(size)
                ]
                steps = {int(line.split()[-1]) for line in lines}
                assert len(steps) == 1, (number, turn, lines)
                expected += steps
                for rank in range(size):
                    report = f"X_RAGENT_SAVED={expected[-1]}\nX_RAGENT_NOTICE={notice}"
                    assert ranks.agents[rank].next() == report, (number, turn, rank)
            assert expected[0] >= place and all(step % every == 0 for step in expected)
            for rank in range(size):
                line = ranks.runs[rank].prints(f"round {number} rank {rank} answers")
                assert line.split("answers")[1].split() == [str(step) for step in expected], (number, rank)
        ranks.succeed()


@pytest.mark.usefixtures("needs_torch")
def test_reductions(sandbox):
    """There is one reduction for each multiple of `every`, and a notice before one of them is answered at the next.

    - At other steps there is none, and when a script asks again at the same step.
    - A rank without an agent takes part. If no rank has an agent, there is one reduction, and then no other.
    - A script may end while one is not read. Then it has no result in the next process group: other ranks may not have it.
    - The module keeps no process group that was destroyed.
    - A script may ask in another mode of torch, such as that of an evaluation.
    - Callbacks end the script when all ranks have come to its end.
    """
    script = """
    import weakref
    from ragent import _saves
    calls, reduce = [], dist.all_reduce
    dist.all_reduce = lambda *args, **options: calls.append(step) or reduce(*args, **options)
    file = os.environ["RAGENT_NOTICE_FILE"]
    for name, last in [("open", 7), ("one", 49), ("none", 49), ("again", 14)]:
        os.environ.pop("RAGENT_NOTICE_FILE", None)
        if os.environ["RANK"] == "1" and name != "none":
            os.environ["RAGENT_NOTICE_FILE"] = file
        join(name)
        group = weakref.ref(dist.group.WORLD)
        calls.clear()
        answers = []
        for step in range(1, last + 1):
            with torch.inference_mode(step < 10):
                answers += [step for _ in range(3) if ragent.should_save(step, every=7)]
        say(name, calls, answers)
        calls.clear()
        try:
            _saves.end_together()
        except SystemExit as end:
            # One more reduction, for which all ranks wait.
            assert (end.code, calls) == (0, [last]), (end.code, calls)
        dist.destroy_process_group()
        assert group() is None
    """
    with Ranks(sandbox, 2, script) as ranks:
        ranks.agents[1].give(NOTICE)
        ranks.succeed()
        expected = ["open [7] []", "one [7, 14, 21, 28, 35, 42, 49] [14]", "none [7] []", "again [7, 14] []"]
        for run in ranks.runs:
            assert run.stdout.splitlines() == expected
            assert run.stderr == ""


@pytest.mark.usefixtures("needs_torch")
def test_reduction_that_fails(sandbox):
    """The error of torch is raised if another rank is gone."""
    script = """
    join("group")
    ragent.should_save(10)
    if dist.get_rank() == 1:
        os._exit(0)
    try:
        ragent.should_save(20)
        ragent.should_save(30)
    except RuntimeError:
        say("raised")
        os._exit(0)
    """
    with Ranks(sandbox, 2, script) as ranks:
        ranks.succeed()
        assert ranks.runs[0].stdout == "raised\n"


@pytest.mark.usefixtures("needs_torch")
def test_devices(sandbox):
    """The reduction uses the CPU where the process group can, otherwise the device of its backend."""
    sandbox.run(
        """
        import types
        import torch
        from ragent._saves import _device_of
        for backends, bound, device in [
            ("cpu:gloo,cuda:gloo", None, "cpu"),
            ("cuda:nccl,cpu:gloo", None, "cpu"),
            ("cuda:nccl", None, "cuda"),
            ("cuda:nccl", "cuda:3", "cuda:3"),
            ("xpu:xccl", None, "xpu"),
            ("xpu:xccl", "cuda:3", "xpu"),
            ("", None, "cpu"),
        ]:
            torch.distributed.get_backend_config = lambda backends=backends: backends
            group = types.SimpleNamespace(bound_device_id=bound and torch.device(bound))
            assert _device_of(group, torch) == torch.device(device), (backends, bound)
        """
    ).succeeds()
