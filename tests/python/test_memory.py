"""`ragent.checkpoint`: what is saved is what is loaded, and an error changes nothing."""

import gc
import json
import os
import random
import socket
import struct
import subprocess
import sys
import warnings

import pytest
from support import OTHER_USER, PACKAGE, AgentOfMemory, needs

from ragent import checkpoint as memory


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """The agent, as a worker finds it."""
    with AgentOfMemory(tmp_path) as agent:
        monkeypatch.setenv("RAGENT_MEMORY_SOCKET", agent.path)
        yield agent


@pytest.fixture
def torch():
    needs("torch")
    import torch

    torch.manual_seed(1)
    return torch


@pytest.fixture(autouse=True)
def no_warnings():
    """A warning that a test does not expect is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("error", UserWarning)
        yield


class Training:
    """A model and its optimizer, which make steps."""

    def __init__(self, torch, make=None, width=8):
        self.torch = torch
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 3)
        )
        self.optimizer = (make or torch.optim.AdamW)(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def steps(self, count):
        losses = []
        for _ in range(count):
            loss = self.model(self.torch.randn(16, 4)).square().mean() + random.random()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses


OPTIMIZERS = {
    "adamw": lambda torch: torch.optim.AdamW,
    "sgd": lambda torch: torch.optim.SGD,
    "momentum": lambda torch: lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "fused": lambda torch: lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True),
    "lbfgs": None,
}


@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum", "fused"])
@pytest.mark.parametrize("steps_before", [0, 1])
def test_training_goes_on(agent, torch, name, steps_before):
    """After a load, also into a new optimizer, the losses are those that would have come: of data, dropout and Python."""
    make = OPTIMIZERS[name](torch)
    try:
        training = Training(torch, make)
        training.steps(3)
    except (RuntimeError, TypeError) as error:
        pytest.skip(f"this torch has no {name} for the CPU: {error}")
    assert memory.save(3, training.state)
    expected = training.steps(4)

    other = Training(torch, make)
    other.steps(steps_before)
    assert memory.load(other.state) == 3
    assert other.steps(4) == expected
    for (key, mine), theirs in zip(training.model.state_dict().items(), other.model.state_dict().values()):
        assert torch.equal(mine, theirs), key
    assert not agent.asked("unusable")


def test_nothing_of_the_buffer_is_kept(agent, torch):
    """What was loaded does not change with the buffer, which is no longer mapped."""
    training = Training(torch)
    training.steps(1)
    training.state["list"] = [torch.ones(3)]
    memory.save(1, training.state)
    other = Training(torch)
    other.state["list"] = None
    before = _mapped(writable=False)
    assert memory.load(other.state) == 1
    assert _mapped(writable=False) == before == 0
    agent.replace(bytes(len(agent.content())))
    for value in other.optimizer.state_dict()["state"][0].values():
        assert value.abs().sum() > 0
    assert torch.equal(other.state["list"][0], torch.ones(3))


def _mapped(writable):
    with open("/proc/self/maps") as file:
        return sum("memfd:buffer" in line and ("rw-s" in line) == writable for line in file)


class Loader:
    """An object of a script."""

    def __init__(self):
        self.place = {"epoch": 0, "seen": ()}

    def state_dict(self):
        return self.place

    def load_state_dict(self, state):
        self.place = state


def test_kinds_of_values(agent, torch):
    """Tensors of all shapes and types, objects, numbers and numpy's arrays."""
    numpy = pytest.importorskip("numpy")

    def make(fill):
        base = fill * torch.arange(24.0).reshape(4, 6)
        tensors = {
            "scalar": torch.tensor(2.5) * fill,
            "empty": torch.empty(0, 3),
            "turned": base.t(),
            "gaps": base[:, ::2],
            "flags": torch.tensor([True, False]) if fill else torch.tensor([False, False]),
            "half": (base * fill).to(torch.bfloat16),
            "complex": torch.complex(base, -base),
            "conjugate": torch.complex(base, base).conj(),
            "parameter": torch.nn.Parameter(base.clone()),
            "sparse": (base * fill).to_sparse(),
            "a.b": torch.full((2,), 1.0 * fill),
            "a": {"b": torch.full((2,), 2.0 * fill)},
        }
        loader = Loader()
        if fill:
            loader.place = {"epoch": 3, "seen": (1, 2), "array": numpy.arange(5)}
        return {"tensors": tensors, "data": loader, "number": 7 * fill, "plain": torch.arange(5) * fill}

    state = make(1)
    assert memory.save(5, state)
    other = make(0)
    plain, turned = other["plain"], other["tensors"]["turned"]
    assert memory.load(other) == 5
    assert other["plain"] is plain and other["tensors"]["turned"] is turned
    for name, value in state["tensors"].items():
        if name == "a":
            value, found = value["b"], other["tensors"]["a"]["b"]
        else:
            found = other["tensors"][name]
        assert torch.equal(value.to_dense(), found.to_dense()) and value.dtype == found.dtype, name
    assert other["number"] == 7 and other["plain"].tolist() == list(range(5))
    assert other["data"].place["seen"] == (1, 2) and other["data"].place["array"].tolist() == list(range(5))


def test_new_tensors_keep_their_strides(agent, torch):
    """A tensor that the script does not have yet gets the order in memory that it had."""
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert memory.save(1, {"x": {"images": images}})
    other = {"x": {}}
    assert memory.load(other) == 1
    assert torch.equal(other["x"]["images"], images) and other["x"]["images"].stride() == images.stride()


def test_tied_weights(agent, torch):
    """Tied tensors are saved once, and stay tied."""

    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(64, 64, bias=False)
            self.second = torch.nn.Linear(64, 64, bias=False)
            self.second.weight = self.first.weight

    model, other = Tied(), Tied()
    assert memory.save(1, {"model": model, "rng": None})
    assert len(agent.content()) < 2 * 64 * 64 * 4
    assert memory.load({"model": other, "rng": None}) == 1
    assert torch.equal(other.second.weight, model.first.weight) and other.second.weight is other.first.weight


def test_models_with_more_than_tensors(agent, torch):
    """A model gets what its state has besides parameters and buffers."""

    class Extra(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))
            self.extra = None

        def get_extra_state(self):
            return {"extra": self.extra}

        def set_extra_state(self, state):
            self.extra = state["extra"]

    model, other = Extra(), Extra()
    model.extra = "more"
    memory.save(1, {"model": model})
    assert memory.load({"model": other}) == 1
    assert other.extra == "more"


def test_subclasses_made_of_tensors(agent, torch):
    """A tensor that consists of others is made again of them."""
    from torch.testing._internal.two_tensor import TwoTensor

    saved = TwoTensor(torch.ones(3), torch.full((3,), 2.0))
    assert memory.save(1, {"x": {"two": saved}})
    own = TwoTensor(torch.zeros(3), torch.zeros(3))
    for state in ({"x": {"two": own}}, {"x": {}}):
        assert memory.load(state) == 1
        two = state["x"]["two"]
        assert type(two) is TwoTensor and two.a.tolist() == [1.0] * 3 and two.b.tolist() == [2.0] * 3
    assert own.b.tolist() == [2.0] * 3


def test_replicated(agent, torch, monkeypatch):
    """Local rank 0 writes for all ranks of the node. Each rank gets random numbers of its own, the same in each restart."""
    training = Training(torch)
    training.steps(1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert memory.save(1, training.state, replicated=True) and not agent.requests
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert memory.save(1, training.state, replicated=True)
    assert agent.asked("buffer")[0]["replicated"] is True

    def numbers(rank):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        torch.manual_seed(9)
        other = Training(torch)
        assert memory.load(other.state) == 1
        assert torch.equal(other.model[0].weight, training.model[0].weight)
        return torch.rand(3).tolist(), random.random()

    assert numbers(0) == numbers(0) != numbers(1)


def test_own_random_numbers(agent, torch):
    """With a key `rng`, the generators are left alone."""
    memory.save(1, {"rng": Loader()})
    before = torch.get_rng_state(), random.getstate()
    assert memory.load({"rng": Loader()}) == 1
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_numpys_random_numbers(agent, torch):
    numpy = pytest.importorskip("numpy")
    memory.save(1, {})
    expected = numpy.random.rand(3).tolist()
    assert memory.load({}) == 1
    assert numpy.random.rand(3).tolist() == expected


def _other_groups(torch, training):
    first, *rest = training.model.parameters()
    training.state["optimizer"] = torch.optim.AdamW([{"params": [first]}, {"params": rest}], lr=0.01)


CHANGES = {
    "shape": (lambda torch, training: training.state.update(Training(torch, width=9).state), "has the shape"),
    "type": (lambda torch, training: training.model.to(torch.bfloat16), "has the dtype"),
    "more": (lambda torch, training: training.model.append(torch.nn.Linear(3, 3)), "is not in the checkpoint"),
    "less": (lambda torch, training: training.model.pop(3), "is only in the checkpoint"),
    "new key": (lambda torch, training: training.state.update(ema=torch.ones(2)), "`ema` is not in the checkpoint"),
    "no key": (lambda torch, training: training.state.pop("scheduler"), "`scheduler` is only in the checkpoint"),
    "groups": (_other_groups, "the groups of `optimizer`"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_model(agent, torch, change):
    """A state that does not fit is an error before anything is changed, and the agent learns of it."""
    training = Training(torch)
    training.steps(1)
    assert memory.save(1, training.state)
    other = Training(torch)
    apply, text = CHANGES[change]
    apply(torch, other)
    before = _image(torch, other.state)
    with pytest.raises(memory.MismatchError, match=text):
        memory.load(other.state)
    assert _image(torch, other.state) == before
    (unusable,) = agent.asked("unusable")
    assert unusable["step"] == 1 and "failed to load step 1 from memory" in unusable["reason"]


def _image(torch, state):
    """Returns what a load would change."""
    values = [str(value.state_dict() if hasattr(value, "state_dict") else value) for value in state.values()]
    return values, torch.get_rng_state().tolist(), random.getstate()


def _cut(content):
    return content[:40]


def _other_magic(content):
    return b"X" + content[1:]


def _other_version(content):
    return content[:8] + struct.pack("<I", 9) + content[12:]


def _cut_table(content):
    """The table ends in the middle."""
    (end,) = struct.unpack_from("<Q", content, 16)
    return content[:16] + struct.pack("<Q", end - 9) + content[24:]


def _long_objects(content):
    return content[:32] + struct.pack("<Q", len(content) + 1) + content[40:]


def _bad_objects(content):
    return content[:-30] + b"x" * 30


def _with_table(change):
    def apply(content):
        end, objects, size = struct.unpack_from("<3Q", content, 16)
        table = json.loads(content[40:end])
        change(table)
        text = json.dumps(table).encode()
        # The tensors begin at a multiple of 64.
        before, now = -(-end // 64) * 64, -(-(40 + len(text)) // 64) * 64
        more = now - before
        header = content[:16] + struct.pack("<3Q", 40 + len(text), objects + more, size + more)
        return (header + text).ljust(now, b"\0") + content[before:]

    return apply


def _set(**values):
    return _with_table(lambda table: table["tensors"][0].update(values))


DAMAGES = {
    "cut": _cut,
    "magic": _other_magic,
    "version": _other_version,
    "cut table": _cut_table,
    "long objects": _long_objects,
    "bad objects": _bad_objects,
    "another kind": _with_table(lambda table: table.update(kind="dcp")),
    "offset": _with_table(lambda table: table["tensors"][-1].update(offset=64 * 999)),
    "odd offset": _set(offset=1),
    "negative": _set(offset=-1),
    "shape": _set(shape=[2, 2]),
    "type": _set(dtype="int8"),
    "no type": _set(dtype="load"),
    "no name": _set(name=5),
    "no table": _with_table(lambda table: table.update(tensors=3)),
    "strides": _set(stride=[1, 99]),
    "missing tensor": _with_table(lambda table: table["tensors"].pop()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_content(agent, torch, damage):
    """Content that makes no sense is an error that says so, and changes nothing."""
    saved = {"x": torch.arange(16, dtype=torch.float32).reshape(4, 4), "y": {"late": torch.ones(100)}, "rng": None}
    assert memory.save(1, saved)
    agent.replace(DAMAGES[damage](agent.content()))
    other = {"x": torch.zeros(4, 4), "y": {}, "rng": None}
    with pytest.raises(memory.DamagedError, match="in memory"):
        memory.load(other)
    assert other["x"].tolist() == torch.zeros(4, 4).tolist() and other["y"] == {}
    assert [request["step"] for request in agent.asked("unusable")] == [1]


def test_layouts_and_buffers_are_kept(agent, torch):
    """Saves of the same state use two buffers in turn, which stay mapped, and tensors in them that were made once."""
    training = Training(torch)
    training.steps(1)
    assert memory.save(0, training.state)
    layout = memory._last[1]
    for step in range(1, 6):
        training.steps(1)
        assert memory.save(step, training.state)
    assert memory._last[1] is layout
    client = memory._memory_client.client()
    assert sorted(mapping.number for mapping in client._mappings) == [0, 1]
    gc.collect()
    assert _mapped(writable=True) == 2
    # Larger states get other buffers, and the oldest mappings go.
    for step in range(3):
        memory.save(step, {"x": torch.zeros(1 << 20, step + 1)})
    assert len(client._mappings) <= 3 and _mapped(writable=True) <= 3
    other = {"x": torch.ones(1 << 20, 3)}
    assert memory.load(other) == 2 and other["x"].abs().max() == 0
    assert memory.newest_whole() == 2


def test_without_an_agent(torch, monkeypatch):
    """A script runs unchanged, and a wrong value is an error in any case."""
    monkeypatch.delenv("RAGENT_MEMORY_SOCKET", raising=False)
    state = {"x": torch.ones(1)}
    assert memory.load(state) is None and memory.newest_whole() is None
    assert memory.save(1, state) is False and memory.save(1, state, replicated=True) is False
    for step, error in [(-1, ValueError), (2**53, ValueError), (1.5, TypeError)]:
        with pytest.raises(error, match=f"failed to save a checkpoint in memory: step {step} is not a whole number"):
            memory.save(step, state)
    for wrong, what in [(torch.ones(2), "a Tensor"), ({1: 2}, "the key 1")]:
        for call in (lambda wrong=wrong: memory.save(1, wrong), lambda wrong=wrong: memory.load(wrong)):
            with pytest.raises(TypeError, match=f"`state` is a dictionary with texts as keys, and not {what}"):
                call()


def test_an_agent_that_is_gone(torch, monkeypatch, tmp_path):
    """One warning, and memory is off. A load fails: other ranks may have loaded a step."""
    monkeypatch.setenv("RAGENT_MEMORY_SOCKET", str(tmp_path / "missing"))
    with pytest.warns(RuntimeWarning, match="failed to ask the agent for memory"):
        with pytest.raises(memory.DamagedError, match="failed to ask the agent"):
            memory.load({})
    assert memory.save(1, {}) is False and memory.newest_whole() is None


def test_a_socket_of_another_user(monkeypatch, tmp_path):
    """A worker takes no checkpoint from another user, and sends nothing there."""
    if os.geteuid():
        pytest.skip("only root can start a process of another user")
    path = str(tmp_path / "socket")
    monkeypatch.setenv("RAGENT_MEMORY_SOCKET", path)
    ready, is_ready = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        child = os.fork()
        if child == 0:
            code = 2
            try:
                os.setuid(OTHER_USER)
                listener.listen()
                os.write(is_ready, b"x")
                connection, _ = listener.accept()
                request = connection.recv(4096)
                if request:
                    connection.send(b'{"step": null}')
                code = 1 if request else 0
            finally:
                os._exit(code)
    try:
        os.read(ready, 1)
        with pytest.warns(RuntimeWarning, match=f"its owner is uid {OTHER_USER}, .* TMPDIR"):
            with pytest.raises(memory.DamagedError, match="failed to ask the agent"):
                memory.load({})
    finally:
        os.close(ready)
        os.close(is_ready)
        end = os.waitpid(child, 0)[1]
    assert end == 0
    assert memory.save(1, {}) is False


def test_overflow_uid():
    """In a user namespace, the uid of all unknown users is trusted only if they do not reach its network."""
    code = "import os; from ragent._users import check_owner; check_owner(0); check_owner(os.geteuid())"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    ends = []
    for flags in (["--user"], ["--user", "--net"]):
        command = ["unshare", *flags, sys.executable, "-B", "-c", code]
        ends.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr)
    if "unshare" in ends[0]:
        pytest.skip(f"no user namespace: {ends[0]}")
    assert "which may be any user in this user namespace" in ends[0] and not ends[1], ends


@pytest.mark.parametrize("ask", ["buffer", "saved", "load", "newest", "unusable"])
@pytest.mark.parametrize("answer", [None, b"{", b"[]", b"x" * 5000])
def test_a_connection_that_breaks(agent, torch, ask, answer):
    """A connection that is closed, or an answer that makes no sense, turns memory off for this process."""
    state = {"x": torch.ones(2)}
    assert memory.save(1, state)
    agent.answers[ask] = answer
    if ask == "unusable":
        with pytest.warns(RuntimeWarning), pytest.raises(memory.MismatchError):
            memory.load({"x": torch.ones(3)})
    elif ask == "load":
        with pytest.warns(RuntimeWarning), pytest.raises(memory.DamagedError, match="failed to ask the agent"):
            memory.load(state)
    else:
        with pytest.warns(RuntimeWarning, match="saves no more checkpoints in memory"):
            results = {
                "buffer": lambda: memory.save(2, state),
                "saved": lambda: memory.save(2, state),
                "newest": memory.newest_whole,
            }
            assert not results[ask]()
    count = len(agent.requests)
    assert memory.save(3, state) is False and memory.newest_whole() is None
    with pytest.raises(memory.DamagedError, match="the connection to .* has broken"):
        memory.load(state)
    assert len(agent.requests) == count


@pytest.mark.parametrize(
    "answer", [{"buffer": 7, "size": 1 << 20}, {"buffer": 7, "size": 5}, {"buffer": "a", "size": 1 << 20}]
)
def test_buffers_that_make_no_sense(agent, torch, answer):
    """A buffer without a file, or one that is too small, turns memory off."""
    agent.answers["buffer"] = answer
    with pytest.warns(RuntimeWarning, match="saves no more checkpoints in memory"):
        assert memory.save(1, {}) is False


@pytest.mark.parametrize("answer", [{"step": 4, "bytes": 100}, {"step": 4}])
def test_a_checkpoint_that_is_not_there(agent, torch, answer):
    """A rank that does not get what the agent has announced must not begin at another step than the others."""
    agent.answers["load"] = answer
    with pytest.raises(memory.DamagedError, match="failed to map step 4"):
        memory.load({})
    assert [request["step"] for request in agent.asked("unusable")] == [4]


class Interruption(BaseException):
    """What a signal handler raises."""


def test_a_request_that_is_interrupted(agent, torch, monkeypatch):
    """Its answer is not taken for that of the next request."""
    state = {"x": torch.ones(2)}
    assert memory.save(1, state)
    client = memory._memory_client.client()

    def interrupted(connection):
        raise Interruption

    monkeypatch.setattr(client, "_receive", interrupted)
    with pytest.raises(Interruption):
        memory.newest_whole()
    monkeypatch.undo()
    monkeypatch.setenv("RAGENT_MEMORY_SOCKET", agent.path)
    assert memory.save(2, state) is False
    with pytest.raises(memory.DamagedError):
        memory.load(state)


def test_a_signal_handler_that_saves(agent, torch, monkeypatch):
    """A handler that interrupts a save gets False at once, and the save goes on."""
    state, results = {"x": torch.ones(2)}, []
    client = memory._memory_client.client()
    receive = client._receive

    def interrupted(connection):
        results.append((memory.save(9, state), memory.newest_whole()))
        return receive(connection)

    monkeypatch.setattr(client, "_receive", interrupted)
    assert memory.save(1, state)
    assert results and set(results) == {(False, None)}
    monkeypatch.undo()


def test_refused(agent, torch):
    """A refused buffer is one warning for each reason. The next save asks again."""
    agent.answers["buffer"] = {"refused": "the node has 40 GB and needs 84"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert memory.save(1, {}) is False
        assert memory.save(2, {}) is False
        agent.answers["buffer"] = {"refused": "ranks save different steps"}
        assert memory.save(3, {}) is False
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2 and "40 GB and needs 84" in texts[0] and "different steps" in texts[1]
    assert all(warning.filename == __file__ for warning in caught)
    del agent.answers["buffer"]
    agent.answers["saved"] = {"refused": "too late"}
    with pytest.warns(RuntimeWarning, match="too late"):
        assert memory.save(4, {}) is False
    del agent.answers["saved"]
    assert memory.save(5, {}) is True


def test_a_save_that_waits(agent, torch, monkeypatch):
    """A save that waits for other ranks says so, once, and goes on."""
    client, texts = memory._memory_client, []
    monkeypatch.setattr(client, "_SILENCE", 0.01)

    def warn(text):
        texts.append(text)
        agent._lock.release()

    for step in (1, 2):
        assert memory.save(step, {})
    monkeypatch.setattr(client, "_warn", warn)
    monkeypatch.setenv("RANK", "3")
    agent._lock.acquire()
    assert memory.save(3, {}) and memory.save(4, {})
    assert len(texts) == 1 and texts[0].startswith("rank 3 has waited 0.01 s in `save` of step 3: another rank"), texts


def test_objects_that_cannot_be_saved(agent, torch):
    """The error names the key."""
    with pytest.raises(TypeError, match="failed to save the state of `data` in memory"):
        memory.save(1, {"data": lambda: None})
    assert not agent.asked("buffer")


def test_forked_process(agent, torch):
    """A forked process has no memory, and does not disturb the connection of its parent."""
    state = {"x": torch.ones(2)}
    assert memory.save(1, state)
    count = len(agent.requests)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            nothing = memory.save(2, state), memory.load(state), memory.newest_whole()
            code = 0 if nothing == (False, None, None) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(agent.requests) == count
    assert memory.load(state) == 1


def test_import_costs_nothing(agent):
    """Importing the module imports no torch, and opens no connection."""
    code = "import sys, ragent.checkpoint as m; assert 'torch' not in sys.modules and 'numpy' not in sys.modules; m.rng()"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, "-B", "-c", code], env=environment, check=True)
    assert not agent.requests
