"""A DCP checkpoint in memory is loaded by another number of ranks."""

import contextlib
import io
import itertools
import json
import pickle
import random
import struct
import types

import pytest
from support import BEGIN_OF_RANKS, END_OF_RANK, AgentOfMemory, free_port, needs

needs("torch")

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from ragent import _memory_dcp, _memory_format, _memory_resharding, checkpoint  # noqa: E402
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex  # noqa: E402
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem  # noqa: E402


def _objects(draw, count):
    """Returns objects of a checkpoint, and their bytes."""
    values = {f"value.{number}": draw.randbytes(draw.randrange(40)) for number in range(count)}
    absent = [{"name": f"absent.{number}", "dtype": "float32", "shape": [3, number]} for number in range(draw.randrange(3))]
    own = draw.randbytes(draw.randrange(40))
    return values, absent, own, _memory_format.pack_objects(values, absent, own)


def _read_index(content):
    with _memory_format.reading():
        end = _memory_format.index_end(content, len(content))
        return _memory_format.index_of(content[_memory_format.INDEX_BEGIN : end], len(content))


def test_index_of_objects():
    """Each object is found where it was written."""
    draw = random.Random(1)
    for _ in range(100):
        values, absent, own, content = _objects(draw, draw.randrange(5))
        index = _read_index(content)
        assert {name: content[begin : begin + size] for name, (begin, size) in index.objects.items()} == values
        assert index.absent == absent
        begin, size = index.pickle
        assert content[begin : begin + size] == own


def test_torn_indexes():
    """An index that was torn is an error, or what it names lies in the content."""
    draw = random.Random(2)
    errors = 0
    for _ in range(2000):
        content = bytearray(_objects(draw, 3)[3])
        if draw.random() < 0.3:
            del content[draw.randrange(len(content)) :]
        else:
            for _ in range(draw.randrange(1, 4)):
                content[draw.randrange(min(len(content), 300))] = draw.choice(b'\x00\xff09-."]}')
        try:
            index = _read_index(bytes(content))
        except checkpoint.DamagedError:
            errors += 1
            continue
        for begin, size in [*index.objects.values(), index.pickle]:
            assert 0 <= begin <= begin + size <= len(content)
    assert errors > 500


def test_torn_tables():
    """What a table names lies in the block, and each chunk in its tensor."""
    draw = random.Random(3)
    (whole,) = _tables([_block({"x": (torch.ones(4, 3), (8, 3), (4, 0))}, {"y": b"text"})])
    errors = 0
    for _ in range(2000):
        texts = [bytearray(text) for text in whole]
        torn = texts[draw.randrange(3)]
        if draw.random() < 0.3:
            del torn[draw.randrange(len(torn)) :]
        else:
            torn[draw.randrange(len(torn))] = draw.choice(b'\x00\xff09-."]}')
        try:
            saved = _memory_resharding.Saved(None, 5, [_PART], [tuple(bytes(text) for text in texts)], 0)
            metadata = saved.metadata()
        except checkpoint.DamagedError:
            errors += 1
            continue
        for name in saved.tensors:
            shape = metadata.state_dict_metadata[name].size
            for chunk in metadata.state_dict_metadata[name].chunks:
                assert all(begin + size <= end for begin, size, end in zip(chunk.offsets, chunk.sizes, shape))
    assert errors > 500


def test_torn_blocks():
    """What the same rank reads again is an error if it was torn, or lies in the block."""
    draw = random.Random(5)
    chunk = ChunkStorageMetadata(torch.Size([4, 0]), torch.Size([4, 3]))
    own = pickle.dumps({"tensors": [(None, torch.Size([8, 3]), chunk)], "planner": None})
    whole = _block({"x": (torch.ones(4, 3), (8, 3), (4, 0))}, {"y": b"text"}, own)
    tensors = _memory_format.header_of(whole[:40])
    places = [*range(tensors.table_end), *range(tensors.objects, len(whole) - len(own))]
    errors = 0
    for _ in range(2000):
        content = bytearray(whole)
        if draw.random() < 0.3:
            del content[draw.randrange(1, len(content)) :]
        else:
            content[draw.choice(places)] = draw.choice(b'\x00\xff09-."]}')
        try:
            found = _memory_dcp._Own(types.SimpleNamespace(memory=bytes(content), size=len(content)))
        except checkpoint.DamagedError:
            errors += 1
            continue
        for name in found._index.objects:
            assert len(found.object(name)) <= len(whole)
    assert errors > 500


@pytest.mark.parametrize(
    "change",
    [
        {"group_rank": 1},
        {"first_rank": 1},
        {"ranks": 0},
        {"ranks": True},
        {"sources": "node0:1"},
        {"sources": None},
        {"ranks": "1"},
    ],
)
def test_lists_that_make_no_sense(change):
    """A list of nodes that have gaps, or wrong types, is an error."""
    good = {"group_rank": 0, "first_rank": 0, "ranks": 1, "sources": ["node0:1"]}
    assert _memory_resharding.parts_of(json.dumps([good]).encode()) == [_memory_resharding.Part(["node0:1"], 0, 0, 1)]
    for text in (json.dumps([{**good, **change}]).encode(), b"[]", b"{", b"[3]", None):
        with pytest.raises(checkpoint.DamagedError):
            _memory_resharding.parts_of(text)


def test_batches(monkeypatch):
    """Each wanted range is at its place in an answer, and no request is too large."""
    monkeypatch.setattr(_memory_resharding, "MAX_RANGES", 4)
    monkeypatch.setattr(_memory_resharding, "MAX_BYTES", 50)
    draw = random.Random(4)
    blocks = [draw.randbytes(500) for _ in range(3)]
    merged = 0
    for _ in range(300):
        wanted, place = [], 0
        for _ in range(draw.randrange(30)):
            # Many touch the one before.
            begin = place if draw.random() < 0.5 and place < 400 else draw.randrange(400)
            whole = _memory_resharding.Range(draw.randrange(3), begin, draw.randrange(100))
            place = whole.begin + whole.size
            wanted += _memory_resharding.pieces(whole)
        found = {}
        for batch in _memory_resharding.batches(wanted):
            assert 1 <= len(batch.ranges) <= 4 and 1 <= sum(each.size for each in batch.ranges) <= 50
            answer = b"".join(blocks[each.worker][each.begin : each.begin + each.size] for each in batch.ranges)
            merged += len(batch.places) - len(batch.ranges)
            for number, place in batch.places:
                found[number] = answer[place : place + wanted[number].size]
        assert [found[number] for number in range(len(wanted))] == [
            blocks[each.worker][each.begin : each.begin + each.size] for each in wanted
        ]
    assert merged > 100


_PART = _memory_resharding.Part(["node0:1"], 0, 0, 1)


def _block(tensors, objects, own=b""):
    """Returns what a rank saves. `tensors`: by name, the chunk, the shape of the whole, and the offsets."""
    entries = []
    for name, (chunk, shape, offsets) in tensors.items():
        entry = _memory_format.entry_of(name, chunk)
        entries.append({**entry, "global": {"shape": list(shape), "offsets": [list(offsets)]}})
    layout = _memory_format.Layout("dcp", entries, {})
    packed = _memory_format.pack_objects(objects, [], own)
    memory = bytearray(layout.end + len(packed))
    for view, (chunk, _, _) in zip(layout.views(memory), tensors.values()):
        view.copy_(chunk)
    layout.write(memory, packed)
    return bytes(memory)


def _tables(blocks):
    """Returns what rank 0 reads of each block."""
    tables = []
    for block in blocks:
        header = _memory_format.header_of(block[:40])
        end = _memory_format.index_end(block[header.objects :], header.end - header.objects)
        tables.append((block[:40], block[40 : header.table_end], block[header.objects + 8 : header.objects + end]))
    return tables


class Blocks:
    """A client that has blocks, each on a node of its own."""

    def __init__(self, blocks):
        self.blocks = blocks
        self.asked = []
        self.parts = [_memory_resharding.Part([f"node{each}:1"], each, each, 1) for each in range(len(blocks))]

    def ranges(self, step, group_rank, sources, ranges):
        assert len(ranges) <= _memory_resharding.MAX_RANGES
        assert sum(length for _, _, length in ranges) <= _memory_resharding.MAX_BYTES
        self.asked.append(group_rank)
        memory = bytearray()
        for _, begin, length in ranges:
            assert length and begin + length <= len(self.blocks[group_rank])
            memory += self.blocks[group_rank][begin : begin + length]
        return types.SimpleNamespace(memory=memory)

    def saved(self, rank=0):
        return _memory_resharding.Saved(self, 5, self.parts, _tables(self.blocks), rank)


class Planner(dcp.DefaultLoadPlanner):
    """A planner whose targets are parts of tensors."""

    def __init__(self, targets):
        super().__init__()
        self.targets = targets
        self.committed = 0

    def resolve_tensor(self, item):
        target = self.targets[item.dest_index.fqn]
        for dimension, (begin, length) in enumerate(zip(item.dest_offsets, item.lengths)):
            target = target.narrow(dimension, begin, length)
        return target

    def commit_tensor(self, item, tensor):
        self.committed += 1


def _cut(draw, length):
    """Divides a length into up to three parts, some of which may be empty."""
    cuts = sorted(draw.randrange(length + 1) for _ in range(draw.randrange(3)))
    return list(zip([0, *cuts], [*cuts, length]))


@pytest.mark.parametrize("most", [8, 50, 1 << 20])
def test_any_part_of_any_chunks(monkeypatch, most):
    """A box of a tensor is read from the chunks that others have cut it into, whatever the type, also in small pieces."""
    monkeypatch.setattr(_memory_resharding, "MAX_BYTES", most)
    monkeypatch.setattr(_memory_resharding, "MAX_RANGES", 3)
    draw = random.Random(most)
    for _ in range(60):
        blocks = [{} for _ in range(draw.randrange(1, 5))]
        wholes = {}
        for name in "abc":
            shape = [draw.randrange(1, 7) for _ in range(draw.randrange(4))]
            dtype = draw.choice([torch.float32, torch.bool, torch.bfloat16, torch.int64])
            wholes[name] = whole = torch.randint(0, 2 if dtype is torch.bool else 99, shape).to(dtype)
            for box in itertools.product(*(_cut(draw, length) for length in shape)):
                chunk = whole[tuple(slice(*each) for each in box)].contiguous()
                for each in draw.sample(blocks, draw.randrange(1, len(blocks) + 1)):
                    # Of each name, a rank has one chunk.
                    if name not in each:
                        each[name] = (chunk, shape, [begin for begin, _ in box])
                        break
        saved = Blocks([_block(tensors, {}) for tensors in blocks]).saved(draw.randrange(6))
        known = saved.metadata().state_dict_metadata
        items, targets, expected = [], {}, {}
        for name in known:
            targets[name] = torch.zeros(wholes[name].shape, dtype=wholes[name].dtype)
            expected[name] = targets[name].clone()
            for chunk in known[name].chunks:
                parts = [sorted(draw.choices(range(length + 1), k=2)) for length in chunk.sizes]
                begins = [begin + part[0] for begin, part in zip(chunk.offsets, parts)]
                lengths = torch.Size([end - begin for begin, end in parts])
                box = tuple(slice(begin, begin + length) for begin, length in zip(begins, lengths))
                expected[name][box] = wholes[name][box]
                where = MetadataIndex(name, chunk.offsets)
                offsets = torch.Size([begin for begin, _ in parts])
                items.append(ReadItem(LoadItemType.TENSOR, where, torch.Size(begins), where, offsets, lengths))
        planner = Planner(targets)
        saved.read(LoadPlan(items), planner)
        assert planner.committed == len(items)
        for name, target in targets.items():
            assert torch.equal(target, expected[name]), name


def _whole(name, length, begin=0):
    """Returns the item that reads a chunk of one dimension."""
    index = MetadataIndex(name, torch.Size([begin]))
    return ReadItem(LoadItemType.TENSOR, index, torch.Size([begin]), index, torch.Size([0]), torch.Size([length]))


def _read(client, rank, item):
    """Returns what a rank gets for an item, in a tensor of six values."""
    planner = Planner({item.dest_index.fqn: torch.zeros(6)})
    client.saved(rank).read(LoadPlan([item]), planner)
    return planner.targets[item.dest_index.fqn].tolist()


def test_who_reads_where():
    """A rank reads its own chunk where it can. The ranks that have none are spread."""

    def chunk(rank):
        return (torch.full((2,), float(rank)), (2,), (0,))

    some = [_block({"x": chunk(rank)} if rank else {}, {}) for rank in range(3)]
    assert [_read(Blocks(some), rank, _whole("x", 2))[0] for rank in range(6)] == [1, 1, 2, 2, 1, 2]


def test_ranks_begin_with_different_nodes():
    """A rank that reads from all nodes begins with the one of its number."""
    blocks = [_block({"x": (torch.ones(2), (6,), (2 * rank,))}, {}) for rank in range(3)]
    for rank in range(4):
        client = Blocks(blocks)
        planner = Planner({"x": torch.zeros(6)})
        client.saved(rank).read(LoadPlan([_whole("x", 2, begin) for begin in (0, 2, 4)]), planner)
        assert client.asked == [(rank + each) % 3 for each in range(3)] and planner.targets["x"].tolist() == [1.0] * 6


def test_tensors_of_ranks_under_one_name():
    """If ranks have tensors of several shapes under a name, a rank gets its own. Chunks of other lengths are not mixed."""
    blocks = [_block({"x": (torch.full((rank + 1,), 5.0), (rank + 1,), (0,))}, {}) for rank in range(3)]
    for rank, length in [(0, 1), (1, 2), (2, 3), (3, 1)]:
        client = Blocks(blocks)
        assert client.saved(rank).metadata().state_dict_metadata["x"].size == torch.Size([length])
        assert _read(client, rank, _whole("x", length)) == [5.0] * length + [0.0] * (6 - length)
    blocks = [_block({"x": (torch.ones(length), (4,), (0,))}, {}) for length in (4, 2)]
    assert _read(Blocks(blocks), 1, _whole("x", 4)) == [1.0] * 4 + [0.0] * 2


def test_plans_beyond_a_chunk():
    """A plan that reads beyond a chunk would read another tensor."""
    client = Blocks([_block({"x": (torch.ones(2), (4,), (0,)), "y": (torch.ones(9), (9,), (0,))}, {})])
    with pytest.raises(checkpoint.MismatchError, match="reads beyond a chunk of `x`"):
        _read(client, 0, _whole("x", 3))


def _bytes(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


class Unknown:
    """An object that torch does not load by default."""


def test_objects_of_others():
    """A rank unpickles what it has saved itself. Of others, only what is safe, and an error changes nothing."""
    blocks = [_block({"x": (torch.ones(2), (2,), (0,))}, {"safe": _bytes((1, "a", None)), "own": _bytes(Unknown())})]
    index = MetadataIndex("x", torch.Size([0]))
    tensor = ReadItem(LoadItemType.TENSOR, index, torch.Size([0]), index, torch.Size([0]), torch.Size([2]))

    def read(rank, name):
        where = MetadataIndex(name)
        item = ReadItem(LoadItemType.BYTE_IO, where, torch.Size([0]), where, torch.Size([0]), torch.Size([0]))
        planner = Planner({"x": torch.zeros(2)})
        planner.state_dict, planner.flatten_state_dict = {name: None}, False
        error = None
        try:
            Blocks(blocks).saved(rank).read(LoadPlan([tensor, item]), planner)
        except checkpoint.MismatchError as caught:
            error = str(caught)
        return planner.state_dict[name], planner.targets["x"].tolist(), error

    assert read(0, "safe") == read(1, "safe") == ((1, "a", None), [1.0, 1.0], None)
    assert isinstance(read(0, "own")[0], Unknown)
    value, target, error = read(1, "own")
    assert value is None and target == [0.0, 0.0]
    assert "rank 0 has saved `own`" in error and "load from disk" in error


def test_tables_that_are_too_large(monkeypatch):
    """The limit counts the tables and the indexes."""
    client = Blocks([_block({"x": (torch.ones(2), (2,), (0,))}, {"y": b"abc"})] * 3)
    tables = _tables(client.blocks)
    size = sum(len(text) for texts in tables for text in texts) + 3 * _memory_format.INDEX_BEGIN
    monkeypatch.setattr(_memory_resharding, "MAX_TABLES", size)
    assert _memory_resharding._tables(client, 5, client.parts) == tables
    for less in (1, size // 2, size - 3 * 40):
        monkeypatch.setattr(_memory_resharding, "MAX_TABLES", size - less)
        assert _memory_resharding._tables(client, 5, client.parts) is None


def test_random_numbers(monkeypatch):
    """The same rank of the same number continues. Others seed: each by its rank, the same in each restart."""

    def become(rank, ranks):
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        monkeypatch.setenv("RANK", str(rank))

    def numbers(rank, ranks):
        become(rank, ranks)
        torch.manual_seed(9)
        checkpoint.rng().load_state_dict(state)
        return torch.rand(3).tolist(), random.random()

    become(1, 3)
    state = checkpoint.rng().state_dict()
    same = torch.rand(3).tolist(), random.random()
    assert same == numbers(1, 3)
    assert numbers(0, 3) == numbers(0, 3)
    assert len({str(numbers(rank, 3)) for rank in range(3)} | {str(numbers(1, 2))}) == 4


@pytest.fixture
def agent(tmp_path, monkeypatch):
    with AgentOfMemory(tmp_path) as agent:
        agent.nodes = [[_block({"x": (torch.ones(2), (2,), (0,))}, {})]]
        agent.is_first = True
        monkeypatch.setenv("RAGENT_MEMORY_SOCKET", agent.path)
        yield agent


def test_without_a_process_group(agent, monkeypatch):
    """Several ranks need one, and the error says so. The agent learns that the step cannot be used."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="call `torch.distributed.init_process_group` before"):
        checkpoint.MemoryReader()
    assert [each["step"] for each in agent.asked("unusable")] == [5]


def test_one_rank(agent):
    """A single rank needs no process group."""
    reader = checkpoint.MemoryReader()
    assert reader.step == 5 and list(reader.read_metadata().state_dict_metadata) == ["x"]


@pytest.mark.parametrize("answer", [{"refused": "the round has no such checkpoint"}, {"bytes": 40}, {}, b"x", None])
def test_ranges_that_do_not_come(agent, answer):
    """No ranges, or other ones, are an error, and no warning about saves."""
    agent.answers["ranges"] = answer
    with contextlib.ExitStack() as stack:
        if answer is None or answer == b"x":
            stack.enter_context(pytest.warns(RuntimeWarning, match="failed to ask the agent"))
        with pytest.raises(checkpoint.DamagedError, match="failed to read step 5 of node 0 from memory"):
            checkpoint.MemoryReader()


def test_damaged_blocks(agent):
    """A block that makes no sense is an error that says so."""
    (block,) = agent.nodes[0]
    (end,) = struct.unpack_from("<Q", block, 16)
    for damaged in (b"X" + block[1:], block[: end - 3] + b"abc" + block[end:], block[:32] + struct.pack("<Q", 41) + block[40:]):
        agent.nodes[0][0] = damaged
        with pytest.raises(checkpoint.DamagedError, match="failed to read a checkpoint in memory"):
            checkpoint.MemoryReader()


def test_what_is_missing(agent):
    """A tensor of which the checkpoint has only a part is an error before anything is changed."""
    agent.nodes = [[_block({"x": (torch.ones(2), (4,), (0,)), "y": (torch.ones(2), (2,), (0,))}, {})]]
    state = {"x": torch.zeros(4), "y": torch.zeros(2)}
    reader, planner = checkpoint.MemoryReader(), dcp.DefaultLoadPlanner()
    planner.set_up_planner(state, reader.read_metadata(), True)
    with pytest.raises(checkpoint.MismatchError, match="the checkpoint does not have all that this rank needs of `x`; nothing was changed"):
        reader.read_data(planner.create_local_plan(), planner)
    assert not state["x"].any() and not state["y"].any()
    assert [each["step"] for each in agent.asked("unusable")] == [5]


def test_other_checkpoints_do_not_change_ranks(agent):
    """Only DCP's checkpoints are for any number of ranks."""
    agent.answers["load"] = {"step": 5, "resharded": True}
    with pytest.raises(checkpoint.DamagedError, match="a checkpoint of DCP"):
        checkpoint.load({})
    assert [each["step"] for each in agent.asked("unusable")] == [5]


# What each script begins with, after the begin of all ranks.
BEGIN = """
line = init_device_mesh("cpu", (ranks,))
# Rows and columns, as far as the number of ranks allows.
grid = init_device_mesh("cpu", (2, ranks // 2) if ranks % 2 == 0 else (ranks, 1))

def count(*shape, dtype=torch.float32):
    size = 1
    for length in shape:
        size *= length
    return (torch.arange(1, size + 1).reshape(shape) % 251).to(dtype)

# Neither number of ranks divides the lengths. Two rows are fewer than the ranks.
KINDS = {
    "rows": (count(7, 5), line, [Shard(0)]),
    "columns": (count(5, 11), line, [Shard(1)]),
    "whole": (count(2, 5), line, [Replicate()]),
    "few": (count(2, 3, dtype=torch.bfloat16), line, [Shard(0)]),
    "grid": (count(9, 10, 3), grid, [Shard(0), Shard(1)]),
    "flags": (count(7, 3, dtype=torch.uint8), line, [Shard(0)]),
    "hybrid": (count(6, 5), grid, [Replicate(), Shard(1)]),
    "scalar": (torch.tensor(3.5), line, [Replicate()]),
    # More than one request.
    "large": (count(103, 1 << 10), line, [Shard(0)]),
}
if torch.__version__.startswith("2.2."):
    # Its `dcp.save` refuses fewer rows than ranks.
    del KINDS["few"]

def spread(fill, turned=()):
    state = {}
    for name, (value, mesh, placements) in KINDS.items():
        if name in turned:
            mesh, placements = line, turned[name]
        state[name] = distribute_tensor(value if fill else torch.zeros_like(value), mesh, placements)
    return state

def make(fill, turned=()):
    return {
        "spread": spread(fill, turned),
        "plain": {str(each): torch.tensor(float(each) * fill) for each in range(80)},
        "objects": {"text": "saved" * fill, "list": [1, 2] if fill else [], "rank": rank if fill else -1, "any": torch.ones(1)},
        # Of another shape on each rank, as the state of a data loader may be.
        "own": torch.full((rank % 3 + 1,), float(rank % 3)) * fill,
        "rng": memory.rng(),
    }

"""

SAVE = """
state = make(1)
writer = memory.MemoryWriter(5)
dcp.save(state, storage_writer=writer)
assert writer.taken
"""

LOAD = """
import ragent._memory_resharding as resharding
resharding.MAX_BYTES = 1 << 16
# Half of the tensors are divided in another way now.
turned = {"rows": [Shard(1)], "columns": [Shard(0)], "grid": [Shard(1)], "hybrid": [Replicate()], "whole": [Shard(1)]}
reader = memory.MemoryReader()
assert reader.step == 5
for again in range(2):
    state = make(0, turned)
    torch.manual_seed(0)
    dcp.load(state, storage_reader=reader)
    for name, (value, _, _) in KINDS.items():
        found = state["spread"][name].full_tensor()
        assert torch.equal(found, value), (name, found, value)
    assert all(value.item() == float(name) for name, value in state["plain"].items())
    objects = state["objects"]
    assert objects["text"] == "saved" and objects["list"] == [1, 2], objects
    assert objects["rank"] == (rank if rank < BEFORE else rank % BEFORE), objects
    assert state["own"].tolist() == [float(rank % 3)] * (rank % 3 + 1)
    drawn = [None] * ranks
    dist.all_gather_object(drawn, (torch.rand(1).item(), random.random()))
    assert len(set(drawn)) == ranks, drawn

# Nothing is changed if a name is missing, or a shape is another one.
for other in ({"missing": torch.zeros(2)}, {"spread": {"rows": torch.zeros(7, 6)}}):
    try:
        dcp.load(other, storage_reader=memory.MemoryReader())
    except (Exception, CheckpointException) as error:
        assert "missing" in str(error) or "spread.rows" in str(error), error
    else:
        raise SystemExit("no error")
"""

# All ranks get None if the tables are too large, and an error if rank 0 has one.
FAIL = """
resharding.MAX_TABLES = 100
assert memory.MemoryReader().step is None
resharding.MAX_TABLES = 1 << 30
resharding.parts_of = lambda text: resharding.header_of(b"")
try:
    memory.MemoryReader()
except ValueError as error:
    assert "it is too short" in str(error), error
else:
    raise SystemExit("no error")
"""


@pytest.fixture
def run(sandbox, tmp_path):
    """Runs a script on some ranks, each with an agent of its own. Returns the agents."""
    with contextlib.ExitStack() as stack:

        def run(text, ranks, nodes=None):
            script = sandbox.write("main.py", BEGIN_OF_RANKS + BEGIN + text + END_OF_RANK)
            agents = []
            for rank in range(ranks):
                agent = stack.enter_context(AgentOfMemory(tmp_path, f"memory{rank}of{nodes and len(nodes)}"))
                agent.nodes, agent.is_first = nodes, rank == 0
                agents.append(agent)
            names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            ended = sandbox.run(script, *(agent.path for agent in agents), env=names).succeeds()
            assert ended.stdout.count("done") == ranks
            return agents

        yield run


def test_other_numbers_of_ranks(run):
    """Rows, columns and both, with other placements: four ranks save, three load and save, and four load again."""

    def loaded(agents):
        return all(agent.asked("loaded") and agent.asked("ranges") for agent in agents)

    one, two, three, four = (agent.content("dcp") for agent in run(SAVE, 4))
    agents = run(LOAD.replace("BEFORE", "4") + SAVE, 3, [[one, two], [three], [four]])
    assert loaded(agents)
    one, two, three = (agent.content("dcp") for agent in agents)
    assert loaded(run(LOAD.replace("BEFORE", "3") + FAIL, 4, [[one], [two, three]]))
