"""`ragent.checkpoint` with several ranks of torch: DTensor, FSDP2 and torch.distributed.checkpoint."""

import contextlib

import pytest
from support import BEGIN_OF_RANKS, END_OF_RANK, AgentOfMemory, free_port, needs

pytestmark = pytest.mark.usefixtures("needs_torch")

RANKS = 2

# What each script begins with, after the begin of all ranks.
BEGIN = """
if torch.__version__.startswith("2.6."):
    # It runs on GPUs only.
    fully_shard = None
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

def local(value):
    return value.to_local() if isinstance(value, DTensor) else value

class Training:
    def __init__(self, seed):
        if fully_shard is None:
            print("skipped: this torch has no FSDP2 for the CPU")
            sys.exit()
        torch.manual_seed(seed)
        # Neither 5 nor 3 rows are divisible by the number of ranks.
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 1))
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        torch.manual_seed(100 * seed + rank)
        random.seed(rank)

    def steps(self, count):
        losses = []
        for _ in range(count):
            loss = self.model(torch.randn(8, 4)).square().mean() * random.random()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def check_equal(self, other):
        pairs = zip(self.model.parameters(), other.model.parameters())
        assert all(torch.equal(local(mine), local(theirs)) for mine, theirs in pairs)

"""


@pytest.fixture
def ranks(sandbox, tmp_path):
    """Runs a script on all ranks, each with an agent of its own. Returns the agents."""
    with contextlib.ExitStack() as stack:

        def run(text):
            script = sandbox.write("main.py", BEGIN_OF_RANKS + BEGIN + text + END_OF_RANK)
            agents = [stack.enter_context(AgentOfMemory(tmp_path, f"memory{rank}")) for rank in range(RANKS)]
            names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
            ended = sandbox.run(script, *(agent.path for agent in agents), env=names).succeeds()
            skipped = [line for line in ended.stdout.splitlines() if line.startswith("skipped: ")]
            if skipped:
                pytest.skip(skipped[0])
            assert ended.stdout.count("done") == RANKS
            return agents

        yield run


def test_fsdp2(ranks):
    """Each rank saves its own shards, and loads them into a new model, whose optimizer has no state yet."""
    agents = ranks(
        """
training = Training(1)
training.steps(2)
assert memory.save(2, {"model": training.model, "optimizer": training.optimizer})
expected = training.steps(3)
for steps_before in (0, 1):
    other = Training(2)
    other.steps(steps_before)
    assert memory.load({"model": other.model, "optimizer": other.optimizer}) == 2
    moment = other.optimizer.state_dict()["state"][0]["exp_avg"]
    assert isinstance(moment, DTensor) and moment.placements == (Shard(0),)
    assert other.steps(3) == expected
    training.check_equal(other)
"""
    )
    assert agents[0].content() != agents[1].content()


def test_other_placements(ranks):
    """A DTensor that is spread in another way does not fit."""
    agents = ranks(
        """
whole = torch.arange(8.0).reshape(4, 2)
assert memory.save(1, {"x": distribute_tensor(whole, mesh, [Shard(0)])})
same = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
assert memory.load({"x": same}) == 1 and torch.equal(same.full_tensor(), whole)
for other in (distribute_tensor(torch.zeros(4, 2), mesh, [Replicate()]), torch.zeros(2, 2)):
    try:
        memory.load({"x": other})
    except memory.MismatchError as error:
        assert local(other).abs().max() == 0 and "`x`" in str(error), error
    else:
        raise SystemExit("no error")
"""
    )
    assert all(len(agent.asked("unusable")) == 2 for agent in agents)


# A training of a model that is divided among the ranks. `make_model` and `loss_of` are its own.
DIVIDED = """
class Divided:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = make_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def steps(self, count):
        losses = []
        for _ in range(count):
            self.optimizer.zero_grad()
            losses.append(loss_of(self.model, torch.randn(6, 4)))
            self.optimizer.step()
        return losses

    def state(self):
        return {"model": self.model, "optimizer": self.optimizer}

training = Divided(1)
training.steps(2)
assert memory.save(2, training.state())
expected = training.steps(3)
for steps_before in (0, 1):
    other = Divided(2)
    other.steps(steps_before)
    assert memory.load(other.state()) == 2
    assert other.steps(3) == expected
    assert list(other.model.state_dict()) == list(training.model.state_dict())
    pairs = zip(training.model.parameters(), other.model.parameters())
    assert all(torch.equal(local(mine), local(theirs)) for mine, theirs in pairs)
"""


@pytest.mark.long
def test_tensor_parallel(ranks):
    """With tensor parallelism, each rank saves its parts of the layers, and loads them into a new model."""
    agents = ranks(
        """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def make_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert model[0].weight.placements == (Shard(0),) and local(model[0].weight).shape == (4, 4)
    assert model[2].weight.placements == (Shard(1),) and local(model[2].weight).shape == (2, 4)
    return model

def loss_of(model, batch):
    loss = local(model(batch)).square().mean()
    loss.backward()
    return loss.item()
"""
        + DIVIDED
    )
    assert agents[0].content() != agents[1].content()


@pytest.mark.long
def test_pipeline_parallel(ranks):
    """With a pipeline of two stages, each rank has layers of its own, with other names and shapes."""
    agents = ranks(
        """
def make_model():
    names = [("first", torch.nn.Linear(4, 8)), ("bend", torch.nn.Tanh())] if rank == 0 else [("last", torch.nn.Linear(8, 3))]
    return torch.nn.ModuleDict(dict(names))

def loss_of(stage, batch):
    if rank == 0:
        sent = stage["bend"](stage["first"](batch))
        dist.send(sent.detach(), dst=1)
        gradient = torch.empty_like(sent)
        dist.recv(gradient, src=1)
        sent.backward(gradient)
        return sent.sum().item()
    received = torch.empty(len(batch), 8)
    dist.recv(received, src=0)
    received.requires_grad_()
    loss = stage["last"](received).square().mean()
    loss.backward()
    dist.send(received.grad, dst=0)
    return loss.item()
"""
        + DIVIDED
    )
    assert len(agents[0].content()) != len(agents[1].content())


DCP = """
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

def state_of(training, extra):
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optimizer": optimizer, "extra": extra, "rng": memory.rng()}

"""


@pytest.mark.parametrize("caching", [False, pytest.param(True, marks=pytest.mark.long)])
def test_dcp(ranks, caching):
    """A rank needs only what it has written itself, also of what several ranks have, and with cached plans."""
    agents = ranks(
        DCP
        + f"""
caching = {caching}
import inspect
if caching and "enable_plan_caching" not in inspect.signature(dcp.DefaultSavePlanner).parameters:
    print("skipped: this torch does not cache plans")
    sys.exit()
planner = lambda: dcp.DefaultSavePlanner(enable_plan_caching=True) if caching else dcp.DefaultSavePlanner()
training = Training(1)
if caching:
    # The cache belongs to the class of the planner, so a writer may see its first plan when it is cached already.
    training.steps(1)
    state = state_of(training, {{"same": torch.zeros(3), "text": "a", "epoch": 0}})
    dcp.save(state, checkpoint_id="disk", planner=planner())
"""
        + """
reader = memory.MemoryReader()
assert reader.step is None
for step in range(3):
    training.steps(1)
    writer = memory.MemoryWriter(step)
    extra = {"same": torch.full((3,), float(step)), "text": f"step {step}", "epoch": step}
    dcp.save(state_of(training, extra), storage_writer=writer, planner=planner())
    assert writer.taken
expected = training.steps(2)

other = Training(2)
extra = {"same": torch.zeros(3), "text": "", "epoch": -1}
state = state_of(other, extra)
reader = memory.MemoryReader()
assert reader.step == 2
dcp.load(state, storage_reader=reader)
set_state_dict(other.model, other.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
assert extra == {"same": extra["same"], "text": "step 2", "epoch": 2} and extra["same"].tolist() == [2.0] * 3, extra
# `get_state_dict` and `set_state_dict` draw no numbers, so the generators are those of the save.
assert other.steps(2) == expected
training.check_equal(other)
with open("/proc/self/maps") as file:
    assert not [line for line in file if "memfd:buffer" in line and "r--s" in line]

# The reader may be used again, for a part of the state.
extra = {"same": torch.zeros(3)}
dcp.load({"extra": extra}, storage_reader=reader)
assert extra["same"].tolist() == [2.0] * 3
assert memory.load({}) is None
"""
    )
    assert all(not agent.asked("unusable") for agent in agents)


@pytest.mark.long
def test_dcp_of_tensors_and_objects(ranks):
    """Each rank has its own copy of what all ranks have, and its random numbers."""
    ranks(
        """
def make(fill):
    rows = distribute_tensor(torch.arange(12.0).reshape(6, 2) * fill, mesh, [Shard(0)])
    same = torch.full((), 7.0 * fill)
    # Torch 2.2 does not load objects of a dictionary without tensors.
    return {"rows": rows, "values": {"same": same, "text": "x" * fill, "rank": rank * fill}, "rng": memory.rng()}

random.seed(rank)
torch.manual_seed(rank)
state = make(1)
dcp.save(state, storage_writer=memory.MemoryWriter(4))
expected = torch.rand(3).tolist(), random.random()
values = make(0)
dcp.load(values, storage_reader=memory.MemoryReader())
assert (torch.rand(3).tolist(), random.random()) == expected
assert torch.equal(local(values["rows"]), local(state["rows"]))
assert values["values"] == {"same": 7.0, "text": "x", "rank": rank}, values["values"]
"""
    )


def test_random_numbers_on_disk(ranks):
    """Files of DCP have the generators of one rank. Another rank seeds its own, so that no two ranks draw the same numbers."""
    ranks(
        """
def drawn():
    return torch.rand(1).item(), random.random()

torch.manual_seed(rank)
random.seed(rank)
dcp.save({"rng": memory.rng()}, storage_writer=dcp.FileSystemWriter("disk"))
before = drawn()
for _ in range(2):
    torch.manual_seed(7)
    dcp.load({"rng": memory.rng()}, storage_reader=dcp.FileSystemReader("disk"))
    found = [None, None]
    dist.all_gather_object(found, (before, drawn()))
    assert [before == after for before, after in found].count(True) == 1, found
    assert all(len(set(pair)) == 2 for pair in zip(*(after for _, after in found))), found
"""
    )


@pytest.mark.long
def test_dcp_with_other_placements(ranks):
    """What the rank has not written is an error before anything is changed."""
    agents = ranks(
        """
rows = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0)])
dcp.save({"x": rows}, storage_writer=memory.MemoryWriter(1))
for placement in (Shard(1), Replicate()):
    other = distribute_tensor(torch.zeros(4, 4), mesh, [placement])
    try:
        dcp.load({"x": other}, storage_reader=memory.MemoryReader())
    except (Exception, CheckpointException) as error:
        assert "this rank has not saved all that it needs of `x`" in str(error), error
        assert local(other).abs().max() == 0
    else:
        raise SystemExit("no error")
"""
    )
    assert all(len(agent.asked("unusable")) == 2 for agent in agents)


def test_async_save(ranks):
    """`dcp.async_save` is refused, whoever copies the state."""
    agents = ranks(
        """
import inspect
if not hasattr(dcp, "async_save"):
    print("skipped: this torch has no async_save")
    sys.exit()
kinds = [{}]
# Torch 2.4 has stagers, and does not take them.
if "async_stager" in inspect.signature(dcp.async_save).parameters:
    from torch.distributed.checkpoint.staging import BlockingAsyncStager
    kinds.append({"async_stager": BlockingAsyncStager()})
for options in kinds:
    try:
        dcp.async_save({"x": torch.ones(3)}, storage_writer=memory.MemoryWriter(1), **options).result()
    except (Exception, CheckpointException) as error:
        assert "use `dcp.save`" in str(error), error
    else:
        raise SystemExit("no error")
"""
    )
    assert all(not agent.requests for agent in agents)


@pytest.mark.long
def test_dcp_without_an_agent(sandbox):
    """Nothing is saved, and nothing fails."""
    needs("torch")
    sandbox.run(
        """
        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException
        import ragent.checkpoint as memory

        # Old versions of torch have no checkpoint without it.
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        writer = memory.MemoryWriter(3)
        dcp.save({"x": torch.ones(3)}, storage_writer=writer)
        assert writer.taken is False and memory.MemoryReader().step is None
        try:
            dcp.load({"x": torch.ones(3)}, storage_reader=memory.MemoryReader())
        except (Exception, CheckpointException) as error:
            assert "it has no checkpoint" in str(error), error
        else:
            raise SystemExit("no error")
        """,
        env={"GLOO_SOCKET_IFNAME": "lo"},
    ).succeeds()
