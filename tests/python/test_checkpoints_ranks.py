"""`ragent.CheckpointManager` with several ranks of torch: FSDP2, DDP, other numbers of ranks, and decisions that are the same on all."""

import contextlib

import pytest
from support import BEGIN_OF_RANKS, END_OF_RANK, AgentOfMemory, free_port, needs

pytestmark = pytest.mark.usefixtures("needs_torch")

# What each script begins with, after the begin of all ranks.
BEGIN = """
import pathlib, time
import ragent
folder = pathlib.Path("checkpoints")
if rank == 0:
    folder.mkdir(exist_ok=True)
if os.environ["RAGENT_MEMORY_SOCKET"] == "none":
    del os.environ["RAGENT_MEMORY_SOCKET"]
has_fsdp2 = fully_shard is not None and not torch.__version__.startswith("2.6.")

class Position:
    def __init__(self, at):
        self.at = at
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]

class Training:
    def __init__(self, **options):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Linear(7, 3))
        if has_fsdp2:
            for layer in self.model:
                fully_shard(layer)
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.position = Position(0)
        self.state = {"model": self.model, "optimizer": self.optimizer, "position": self.position}
        self.checkpoints = ragent.CheckpointManager(folder, self.state, **options)
        self.at = self.checkpoints.load()
    def step(self, **options):
        self.model(torch.full((2, 4), float(self.at))).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.at += 1
        self.position.at = self.at
        self.checkpoints.save(self.at, **options)
    def values(self):
        tensors = [*self.model.state_dict().values(), *self.optimizer.state_dict()["state"][0].values()]
        whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in tensors]
        return round(sum(each.double().sum().item() for each in whole), 4), self.position.at
"""


@pytest.fixture
def run(sandbox, tmp_path):
    """Runs a script on so many ranks, with as many agents as are asked for. Returns what they print."""
    with contextlib.ExitStack() as stack:

        def run(ranks, text, agents=0):
            script = sandbox.write("main.py", BEGIN_OF_RANKS + BEGIN + text + END_OF_RANK)
            started = [stack.enter_context(AgentOfMemory(tmp_path, f"memory{number}")).path for number in range(agents)]
            sockets = (started or ["none"]) * (ranks // max(agents, 1))
            names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
            ended = sandbox.run(script, *sockets, env=names).succeeds()
            assert ended.stdout.count("done") == ranks
            return sorted(line for line in ended.stdout.splitlines() if line != "done")

        yield run


def test_other_ranks(run):
    """Two ranks write, and one or three go on. With torch that has it, the model is divided by FSDP2."""
    saved = run(2, "training = Training(every=1e6)\nfor step in range(1, 6): training.step(last=step == 5)\nprint(training.values())")
    for ranks in (1, 3):
        text = "training = Training(every=1e6)\nassert training.at == 5\nprint(training.values())"
        assert set(run(ranks, text)) == set(saved)
    assert len(set(saved)) == 1


@pytest.mark.parametrize("replicated", [False, pytest.param(True, marks=pytest.mark.long)])
def test_same_decisions(run, replicated):
    """Ranks of different speed save the same steps in memory and in the folder, and go on from the same one."""
    run(
        2,
        f"""
has_fsdp2 = has_fsdp2 and not {replicated}
import ragent._checkpoints as module
module._SHORTEST, module._AGREE, module._SHARE = 0.02, 0.01, 1
training = Training(every=0.1, replicated={replicated})
saves, writes = [], []
def noted(name, found):
    real = getattr(training.checkpoints, name)
    def call(step):
        found.append(step)
        real(step)
    setattr(training.checkpoints, name, call)
noted("_save_in_memory", saves)
noted("_write", writes)
random.seed(rank)
for _ in range(300):
    time.sleep(random.random() / 300)
    training.step()
training.checkpoints._reap(waits=True)
all_ranks = [None, None]
dist.all_gather_object(all_ranks, (saves, writes))
assert all_ranks[0] == all_ranks[1] and len(saves) > 3 and len(writes) > 1, all_ranks
again = Training(every=1e6, replicated={replicated})
assert again.at == max(saves + writes), (again.at, all_ranks)
""",
        # Only the first rank of a node saves what all have.
        agents=1 if replicated else 2,
    )


def test_values_of_ranks(run):
    """A value that differs from rank to rank is found, and saved for each. Another number of ranks does not load it, with a warning."""
    run(
        2,
        """
warnings.simplefilter("always")
training = Training(every=1e6)
training.position.at = 10 + rank
with warnings.catch_warnings(record=True) as caught:
    training.checkpoints.save(1, last=True)
found = [str(each.message) for each in caught if each.category is RuntimeWarning]
assert [("position differ from rank to rank" in text) for text in found] == [True] * (rank == 0), found
again = Training(per_rank=["position"])
assert (again.at, again.position.at) == (1, 10 + rank)
""",
    )
    run(
        3,
        """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    training = Training(per_rank=["position"])
found = [str(each.message) for each in caught if each.category is RuntimeWarning]
assert training.at == 1 and training.position.at == 0
assert len(found) == 1 and f"`position` of rank {rank} is not loaded" in found[0], found
""",
    )


def test_failed_rank(run):
    """If one rank cannot write, all ranks know the same reason, and nothing is left."""
    run(
        2,
        """
import ragent._checkpoint_parts as module
training = Training(every=1e6)
def fail(paths):
    raise OSError(5, "Input/output error")
real, module._sync = module._sync, fail if rank == 1 else module._sync
try:
    training.step(last=True)
except RuntimeError as error:
    assert "rank 1: OSError: [Errno 5] Input/output error" in str(error), error
except RuntimeWarning as warning:
    assert rank == 0 and "rank 1: OSError: [Errno 5] Input/output error" in str(warning), warning
else:
    raise SystemExit("no error")
dist.barrier()
assert sorted(path.name for path in folder.iterdir()) == [".owner"]
module._sync = real
# The folder is not mounted on the node of rank 1.
training.checkpoints._folder.path = folder if rank == 0 else pathlib.Path("elsewhere")
try:
    training.step(last=True)
except (RuntimeError, RuntimeWarning) as error:
    assert "rank 1: FileNotFoundError" in str(error), error
else:
    raise SystemExit("no error")
assert not pathlib.Path("elsewhere").exists()
training.checkpoints._folder.path = folder
training.step(last=True)
assert "step-3" in [path.name for path in folder.iterdir()]
""",
    )


def test_ddp(run):
    """The names in a checkpoint of DDP have no prefix, so the plain model can load it."""
    run(
        2,
        """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(rank)
model = torch.nn.Linear(3, 2)
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
checkpoints = ragent.CheckpointManager(folder, {"model": parallel, "optimizer": optimizer}, replicated=True)
assert checkpoints.load() == 0
parallel(torch.ones(1, 3)).sum().backward()
optimizer.step()
checkpoints.save(1, last=True)
found = {"model": torch.nn.Linear(3, 2).state_dict()}
dcp.load(found, storage_reader=dcp.FileSystemReader(folder / "step-1"))
assert torch.equal(found["model"]["weight"], model.weight)
""",
    )
