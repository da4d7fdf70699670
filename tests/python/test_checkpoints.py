"""`ragent.CheckpointManager` in one process: what it writes, loads, keeps and reports, and what happens to damage and failures."""

import threading
import time
import warnings

import pytest
from support import AgentOfMemory, AgentOfWorker, needs, wait_until

needs("torch")

import torch
import torch.distributed.checkpoint as dcp

from ragent import CheckpointManager, _checkpoint_parts, _notices, _saves

if _checkpoint_parts._VERSION < (2, 3):
    pytest.skip("one process needs a process group, as in the tests with several ranks", allow_module_level=True)

# Before it, the training waits for the whole write.
HAS_THREAD = _checkpoint_parts.COPIES_ALL


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A process without an agent, which has answered no notice. A warning that a test does not expect is an error."""
    for name in ("RAGENT_MEMORY_SOCKET", "RAGENT_SOCKET", "RAGENT_NOTICE_FILE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # As in a new job.
    monkeypatch.setenv("RAGENT_SAVED_STEP", "")
    monkeypatch.setattr(_saves, "_state", _saves._State())
    monkeypatch.setattr(_notices, "_last", (None, None))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """The agent, for reports and notices."""
    with AgentOfWorker(tmp_path) as agent:
        for name, value in agent.environment.items():
            monkeypatch.setenv(name, value)
        yield agent


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """The agent, for checkpoints in memory."""
    with AgentOfMemory(tmp_path) as memory:
        monkeypatch.setenv("RAGENT_MEMORY_SOCKET", memory.path)
        yield memory


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


class Training:
    """A script. All its values depend on the step."""

    def __init__(self, folder, **options):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "seen": {}}
        self.checkpoints = CheckpointManager(folder, self.state, **options)
        self.at = self.checkpoints.load()

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.full((2, 4), float(self.at))).square().sum().backward()
        self.optimizer.step()
        self.scheduler.step()
        self.at += 1
        self.state["seen"][f"step {self.at}"] = [self.at]

    def steps(self, number, last=False):
        for each in range(number):
            self.step()
            self.checkpoints.save(self.at, last=last and each == number - 1)

    def values(self):
        parts = [*self.model.state_dict().values(), *self.optimizer.state_dict()["state"][0].values()]
        return [each.clone() for each in parts], self.scheduler.state_dict(), dict(self.state["seen"])

    def is_like(self, values):
        own = self.values()
        return all(torch.equal(*pair) for pair in zip(own[0], values[0])) and own[1:] == values[1:]


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def wait_for_names(folder, *expected):
    wait_until(lambda: names(folder) == list(expected), lambda: f"{names(folder)}")


def cut(folder, step):
    """Damages a checkpoint."""
    path = next((folder / f"step-{step}").glob("*.distcp"))
    path.write_bytes(path.read_bytes()[:-1])


def test_next_start(folder):
    """The last step is in the folder, as torch writes it. The next start goes on from it with all values."""
    first = Training(folder)
    assert first.at == 0
    first.steps(7, last=True)
    assert "step-7" in names(folder) and (folder / "step-7/.metadata").exists()
    second = Training(folder)
    assert second.at == 7 and second.is_like(first.values())
    # The same steps follow.
    first.step()
    second.step()
    assert second.is_like(first.values())
    found = {"model": torch.nn.Linear(4, 3).state_dict(), "seen": None}
    dcp.load(found, checkpoint_id=folder / "step-7")
    assert found["model"]["weight"].shape == (3, 4) and found["seen"][0]["step 7"] == [7]


def test_times(folder):
    """In an empty folder, it writes at once. The next write follows after `every`, also after a restart."""
    training = Training(folder, every=1000)
    training.steps(2)
    wait_until(lambda: names(folder), lambda: "nothing is written")
    (first,) = names(folder)
    for manager in (training.checkpoints, Training(folder, every=1000).checkpoints):
        assert 900 < manager._due - time.monotonic() <= 1000
    training.steps(100)
    assert names(folder) == [first]
    assert Training(folder, every=1e-3).checkpoints._due < time.monotonic()


def test_keeps(folder):
    """The newest `keep` checkpoints stay. A later one that is damaged does not count, and is replaced."""
    training = Training(folder, every=1e6, keep=2)
    for _ in range(4):
        training.steps(1, last=True)
    assert names(folder) == ["step-3", "step-4"]
    cut(folder, 4)
    with pytest.warns(RuntimeWarning, match="step 4 in .* is damaged"):
        training = Training(folder, every=1e6, keep=1)
    assert training.at == 3
    training.steps(1, last=True)
    assert names(folder) == ["step-4"]
    assert Training(folder).at == 4
    wait_until(lambda: not list(folder.glob(".deleted-*")), lambda: "old checkpoints are not removed")


def test_damage(folder, monkeypatch):
    """A file that is missing, a file that is short and a table that makes no sense are found. Without a whole one, it is an error."""
    training = Training(folder, every=1e6)
    for _ in range(3):
        training.steps(1, last=True)
    cut(folder, 3)
    next((folder / "step-2").glob("*.distcp")).unlink()
    with pytest.warns(RuntimeWarning) as caught:
        assert Training(folder).at == 1
    assert ["too short" in str(caught[0].message), "FileNotFoundError" in str(caught[1].message)] == [True, True]
    (folder / "step-1/.metadata").write_bytes(b"no table")
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="had a checkpoint of step 3, and has none that is whole"):
        Training(folder)


def test_no_folder(folder, monkeypatch):
    """A folder that does not exist may not be mounted, and one that has lost what the job has saved is a wrong one."""
    with pytest.raises(RuntimeError, match="make the folder once, or mount"):
        Training(folder / "missing")
    monkeypatch.setenv("RAGENT_SAVED_STEP", "7")
    with pytest.raises(RuntimeError, match="had a checkpoint of step 7"):
        Training(folder)


@pytest.mark.parametrize("replicated", [False, True])
def test_newest_of_both(folder, memory, replicated):
    """The next round goes on from the newer one of memory and folder. Without the folder, memory is enough."""
    options = {"every": 1e6, "replicated": replicated}
    training = Training(folder, **options)
    training.steps(4, last=True)
    training.checkpoints._interval = 1
    training.checkpoints._next_agree = 1e6
    training.steps(2)
    assert Training(folder, **options).at == 6
    second = Training(folder / "missing", **options)
    assert second.at == 6 and second.is_like(training.values())
    # Memory is older than the folder.
    memory.held[next(iter(memory.held))]["step"] = 3
    assert Training(folder, **options).at == 4


def test_share_of_memory(folder, memory):
    """Saves in memory come at most once a second, and take at most a fiftieth of the time."""
    checkpoints = Training(folder, every=1e6).checkpoints
    for cost, interval in [(0.001, 100), (0.1, 500)]:
        checkpoints._cost, checkpoints._mark = cost, (0, 10.0)
        # 50 steps in 0.5 s.
        checkpoints._agree(50, 10.5)
        assert checkpoints._result()[:2] == [50, interval]


def test_report(folder, agent):
    """A checkpoint is reported when it has its name, with the time for which the training stood. A step is written once."""
    training = Training(folder, every=1e6)
    training.steps(1, last=True)
    lines = agent.next().splitlines()
    assert lines[:2] == ["X_RAGENT_SAVED=1", "X_RAGENT_SAVED_WHOLE=1"] and lines[2].startswith("X_RAGENT_SAVE_MS=")
    training.checkpoints.save(1, last=True)
    assert agent.rest() == []


def test_notice(folder, agent):
    """A notice is answered by a checkpoint in the folder. One that ends the job returns only then."""
    training = Training(folder, every=1e6)
    training.steps(1, last=True)
    agent.next()
    notice = {"schema": 1, "notice": 3, "kind": "leave", "hosts": ["node4"], "here": False, "until": time.time() + 60, "text": "SIGTERM"}
    agent.give(notice)
    training.checkpoints._next_agree = 0
    training.steps(1)
    training.checkpoints._reap(waits=True)
    assert "X_RAGENT_NOTICE=3" in agent.next() and names(folder) == ["step-1", "step-2"]
    agent.give({**notice, "notice": 4, "kind": "end"})
    training.checkpoints._next_agree = 0
    training.steps(1)
    assert (folder / f"step-{training.at}").exists()
    assert "X_RAGENT_NOTICE=4" in agent.next()


def test_failed_write(folder, agent, monkeypatch):
    """A failed write is a warning and a report, and leaves nothing. It is tried again. If it fails at the last step, this is an error."""
    training = Training(folder, every=4e6)
    real = dcp.save

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dcp, "save", fail)
    with pytest.warns(RuntimeWarning, match=r"No space left on device \(\d+ MiB are free\); training goes on") as caught:
        training.steps(2)
        training.checkpoints._reap(waits=True)
    assert len(caught) == 1
    assert agent.next().startswith("X_RAGENT_SAVE_FAILED=step 2: rank 0: OSError: [Errno 28] No space left on device (")
    assert 0.9e6 < training.checkpoints._due - time.monotonic() < 1e6
    with pytest.raises(RuntimeError, match="No space left on device"), pytest.warns(RuntimeWarning):
        training.steps(1, last=True)
    assert [path.name for path in folder.iterdir()] == [".owner"]
    monkeypatch.setattr(dcp, "save", real)
    training.steps(1, last=True)
    assert names(folder) == [f"step-{training.at}"]


def test_failed_for_too_long(folder, monkeypatch):
    """If nothing could be written for an hour or more, the job fails: somebody must look."""
    training = Training(folder, every=1e6)
    training.steps(1, last=True)
    checkpoints = training.checkpoints
    checkpoints._folder.error = "OSError: the disk is gone"
    checkpoints._committed -= 4e6
    checkpoints._next_agree = 0
    with pytest.raises(RuntimeError, match="for too long: OSError: the disk is gone"):
        training.steps(3)


def test_another_job(folder):
    """A second job in the folder takes it. The first one does not commit any more."""
    first = Training(folder, every=1e6)
    first.steps(1, last=True)
    second = Training(folder, every=1e6)
    with pytest.raises(RuntimeError, match="another job, or a later start of this one"), pytest.warns(RuntimeWarning):
        first.steps(1, last=True)
    assert names(folder) == ["step-1"]
    second.steps(2, last=True)
    assert names(folder) == ["step-1", "step-3"]


def test_left_behind(folder):
    """What a killed round has left is removed at the next start."""
    left = folder / ".writing-9-abc"
    left.mkdir()
    (left / "__0_0.distcp").write_bytes(b"half")
    Training(folder)
    wait_until(lambda: not left.exists(), lambda: f"{list(folder.iterdir())}")


@pytest.mark.skipif(not HAS_THREAD, reason="the training waits for the write")
def test_slow_disk(folder, monkeypatch):
    """Training goes on during a write, and changes nothing of what is written. There is one write at a time."""
    may_go, begun, real = threading.Event(), [], dcp.save

    def slow(*arguments, **options):
        begun.append(1)
        assert may_go.wait(300)
        return real(*arguments, **options)

    monkeypatch.setattr(dcp, "save", slow)
    training = Training(folder, every=1e-3)
    values = {}
    for _ in range(20):
        training.step()
        values[training.at] = training.values()
        training.checkpoints._next_agree = 0
        training.checkpoints.save(training.at)
    wait_until(lambda: begun, lambda: "no write has begun")
    assert len(begun) == 1 and names(folder) == []
    may_go.set()
    training.checkpoints._reap(waits=True)
    second = Training(folder)
    assert 0 < second.at < 20 and second.is_like(values[second.at])


def test_wrong_calls(folder, monkeypatch):
    """A wrong call has an error that says what to do."""
    model = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match=r"call `load\(\)` once"):
        CheckpointManager(folder, {"model": model}).save(1)
    for options in ({"every": 0}, {"keep": 0}):
        with pytest.raises(ValueError, match="must be above 0"):
            CheckpointManager(folder, {"model": model}, **options)
    with pytest.raises(ValueError, match="`state` has 2 models"):
        CheckpointManager(folder, {"model": model, "other": model})
    with pytest.raises(ValueError, match=r"`per_rank` has \['loader'\]"):
        CheckpointManager(folder, {"model": model}, per_rank=["loader"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="call `init_process_group` before"):
        CheckpointManager(folder, {"model": model})


def test_invisible_folder(folder, monkeypatch):
    """A rank that does not see the checkpoint of rank 0 gives up."""
    monkeypatch.setattr(_checkpoint_parts, "_VISIBLE", 0.1)
    for path in (folder, folder / "missing"):
        with pytest.raises(RuntimeError, match="mount one folder on all nodes"):
            _checkpoint_parts.Folder(path, 3, _checkpoint_parts.Group()).reader(5)


def test_lost_last_write(folder, memory, monkeypatch):
    """The last step is not in memory. If its write fails, the next start does it again, and does not believe that nothing is left to do."""
    training = Training(folder, every=1e6)
    training.checkpoints._next_agree = 1e6
    training.steps(6)
    assert memory.held["dcp"]["step"] == 6
    monkeypatch.setattr(_checkpoint_parts, "_damage_of", lambda _: "cut")
    with pytest.raises(RuntimeError, match="failed to write step 7"), pytest.warns(RuntimeWarning):
        training.steps(1, last=True)
    monkeypatch.undo()
    monkeypatch.setenv("RAGENT_MEMORY_SOCKET", memory.path)
    assert Training(folder, every=1e6).at == 6


def test_not_mounted(folder, memory):
    """A start from memory makes no folder that is not mounted, and writes as soon as it is."""
    training = Training(folder, every=1e6)
    training.checkpoints._next_agree = 1e6
    training.steps(3)
    missing = folder / "missing/run7"
    training = Training(missing, every=1e6)
    assert training.at == 3
    with pytest.raises(RuntimeError, match="rank 0: FileNotFoundError"), pytest.warns(RuntimeWarning):
        training.steps(1, last=True)
    assert not missing.parent.exists()
    missing.mkdir(parents=True)
    training.steps(1, last=True)
    assert names(missing) == ["step-5"] and Training(missing).at == 5


def test_file_instead(folder):
    """A file in place of the folder is an error."""
    (folder / "file").write_text("")
    with pytest.raises(RuntimeError, match="Not a directory"):
        Training(folder / "file")


def test_earlier_round(folder, monkeypatch):
    """A round that is still writing when the next one looks for the newest step does not commit. So no step is overlooked."""
    first = Training(folder, every=1e6)
    first.steps(1, last=True)
    real = _checkpoint_parts._damage_of

    def look(path):
        monkeypatch.undo()
        with pytest.raises(RuntimeError, match="a later start of this one"), pytest.warns(RuntimeWarning):
            first.steps(1, last=True)
        return real(path)

    monkeypatch.setattr(_checkpoint_parts, "_damage_of", look)
    assert Training(folder).at == 1 and names(folder) == ["step-1"]


def test_same_step_in_both(folder, memory):
    """If the folder has the step that memory has, it is not written again."""
    training = Training(folder, every=1e6)
    training.checkpoints._next_agree = 0
    training.checkpoints._due = 0
    training.steps(2)
    training.checkpoints._reap(waits=True)
    assert names(folder) == ["step-2"] and memory.held["dcp"]["step"] == 2
    before = (folder / "step-2").stat().st_ino
    second = Training(folder, every=1e6)
    second.checkpoints.save(second.at, last=True)
    assert second.at == 2 and (folder / "step-2").stat().st_ino == before


def test_failed_answer(folder, agent, monkeypatch):
    """Somebody waits for the checkpoint that answers a notice. So a failed one is tried again after seconds."""
    training = Training(folder, every=4e6)
    training.steps(1, last=True)
    agent.give({"schema": 1, "notice": 1, "kind": "save", "hosts": [], "here": False, "text": ""})
    monkeypatch.setattr(_checkpoint_parts, "_damage_of", lambda _: "cut")
    training.checkpoints._next_agree = 0
    with pytest.warns(RuntimeWarning):
        training.steps(1)
        training.checkpoints._reap(waits=True)
    assert training.checkpoints._due - time.monotonic() <= 10


@pytest.mark.skipif(not HAS_THREAD, reason="the training waits for the write")
def test_end_during_write(sandbox, tmp_path):
    """An exception does not wait for a write that goes on. A script that ends as usual does, and also until old checkpoints are removed."""
    script = sandbox.write(
        "main.py",
        """
        import pathlib, shutil, sys, time
        import torch
        import torch.distributed.checkpoint as dcp
        import ragent
        folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
        folder.mkdir()
        real_save, real_remove = dcp.save, shutil.rmtree
        def save(*arguments, **options):
            time.sleep(900 if how == "exception" else 0.5)
            return real_save(*arguments, **options)
        def remove(*arguments):
            time.sleep(0.5)
            real_remove(*arguments)
        dcp.save, shutil.rmtree = save, remove
        checkpoints = ragent.CheckpointManager(folder, {"model": torch.nn.Linear(2, 2)}, keep=1)
        checkpoints.load()
        for step in (1, 2):
            checkpoints._next_agree = 0
            checkpoints.save(step, last=how == "last")
        print("end of the loop")
        if how == "exception":
            raise ValueError("stop")
        """,
    )
    failed = sandbox.run(script, tmp_path / "a", "exception")
    assert failed.code == 1 and "ValueError: stop" in failed.stderr and "end of the loop" in failed.stdout
    for how in ("usual", "last"):
        sandbox.run(script, tmp_path / how, how).succeeds()
        assert sorted(path.name for path in (tmp_path / how).iterdir()) == [".owner", "step-2"]
