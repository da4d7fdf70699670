"""Reads a DCP checkpoint that other ranks have saved.

1. Rank 0 gets a list of the nodes that have saved, and who gives what they have. It reads the header, the table and the index of objects
   of each old rank, and broadcasts them.
2. Each rank makes a directory of all tensors and objects (`Saved`). torch's planner compares it with the new state, and plans which part of
   which chunk this rank needs.
3. A part of a chunk is some of its rows: a range of bytes. Ranges of the same node are asked for together (`batches`), and copied to where
   the planner wants them.

Several old ranks may have the same chunk or object. Rank 3 then reads it from old rank 3, if this one has it. Otherwise the ranks are spread
over the old ranks that have it, so that not all read from one node.

Objects are pickles. An object of another rank is read only if torch loads it with `weights_only=True`.
"""

from __future__ import annotations

import io
import json
import os
from importlib import import_module
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import _memory_client
from ._memory_errors import DamagedError, MismatchError
from ._memory_format import HEADER_SIZE, INDEX_BEGIN, bytes_of, copy, dtype_of, entries_of, header_of, index_end, index_of, reading

torch: Any = import_module("torch")
_metadata: Any = import_module("torch.distributed.checkpoint.metadata")
_planner: Any = import_module("torch.distributed.checkpoint.planner")

# The limits of one request.
MAX_RANGES = 64
MAX_BYTES = 64 << 20
# The most bytes that rank 0 sends to all others. Each rank needs about four times as much memory to read them.
MAX_TABLES = 256 << 20


class Part(NamedTuple):
    """What a node has saved."""

    sources: List[str]
    """The addresses of the nodes that give it."""
    group_rank: int
    first_rank: int
    ranks: int


class Range(NamedTuple):
    """Some bytes of what a worker has saved."""

    worker: int
    """Its local rank."""
    begin: int
    size: int


class Batch(NamedTuple):
    """A request, and where in its answer each of the wanted ranges is."""

    ranges: List[Range]
    places: List[Tuple[int, int]]
    """The number of a wanted range, and its place."""


class Rows(NamedTuple):
    """Some rows of a saved tensor that are read at once, from the first one that is wanted."""

    begin: int
    """In bytes, from the beginning of the tensor."""
    size: int
    shape: Tuple[int, ...]
    """Of what is read. Of the dimensions after the first one, not everything may be wanted."""
    place: Tuple[int, ...]
    """Where it goes: numbers of the outer dimensions of the target, and the first of its rows there."""


class Block(NamedTuple):
    """What one rank has saved."""

    part: Part
    worker: int
    """Its local rank."""
    rank: int


class Place(NamedTuple):
    """Where a chunk or an object is."""

    block: int
    begin: int
    size: int
    dtype: Any = None


class Variant:
    """What is saved under a name: an object, or the chunks of a tensor with this shape."""

    def __init__(self, shape: Optional[Tuple[int, ...]], dtype: Any = None) -> None:
        self.shape = shape
        self.dtype = dtype
        # By the offsets: the lengths, and where it is.
        self.chunks: Dict[Tuple[int, ...], Tuple[Tuple[int, ...], List[Place]]] = {}
        self.objects: List[Place] = []


def batches(wanted: Sequence[Range]) -> Iterator[Batch]:
    """Divides ranges of a node into requests, in the same order. Ranges that touch become one. None has more than `MAX_BYTES`."""
    batch, total = Batch([], []), 0
    for number, each in enumerate(wanted):
        last = batch.ranges[-1] if batch.ranges else None
        touches = last is not None and (last.worker, last.begin + last.size) == (each.worker, each.begin)
        if batch.ranges and (total + each.size > MAX_BYTES or (len(batch.ranges) == MAX_RANGES and not touches)):
            yield batch
            batch, total, touches = Batch([], []), 0, False
        if last is not None and touches:
            batch.ranges[-1] = Range(last.worker, last.begin, last.size + each.size)
        else:
            batch.ranges.append(each)
        batch.places.append((number, total))
        total += each.size
    if batch.ranges:
        yield batch


def pieces(wanted: Range) -> Iterator[Range]:
    """Divides a range into those of at most `MAX_BYTES`. An empty one has none."""
    for begin in range(0, wanted.size, MAX_BYTES):
        yield Range(wanted.worker, wanted.begin + begin, min(MAX_BYTES, wanted.size - begin))


def rows(shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int], item: int) -> Iterator[Rows]:
    """Divides a part of a contiguous tensor into rows of at most `MAX_BYTES` at once. `item`: the bytes of a value.

    If one row is larger, it is divided itself, as a tensor with a dimension less.
    """
    if not product(lengths):
        return
    if not shape:
        yield Rows(0, item, (1,), (0,))
        return
    inner = tuple(shape[1:])
    row = product(inner) * item
    if row > MAX_BYTES:
        for number in range(lengths[0]):
            begin = (offsets[0] + number) * row
            for each in rows(inner, offsets[1:], lengths[1:], item):
                yield each._replace(begin=begin + each.begin, place=(number, *each.place))
        return
    at_once = MAX_BYTES // row
    for first in range(0, lengths[0], at_once):
        count = min(at_once, lengths[0] - first)
        yield Rows((offsets[0] + first) * row, count * row, (count, *inner), (first,))


def product(lengths: Iterable[int]) -> int:
    """Returns the number of values of a tensor with these lengths."""
    count = 1
    for length in lengths:
        count *= length
    return count


def parts_of(text: Optional[bytes]) -> List[Part]:
    """Reads the list of what each node has saved. Raises `DamagedError`."""
    with reading():
        if text is None:
            raise ValueError("the agent has given no list of it to rank 0")
        parts: List[Part] = []
        for each in json.loads(text):
            part = Part(each["sources"], each["group_rank"], each["first_rank"], each["ranks"])
            follows = parts[-1].first_rank + parts[-1].ranks if parts else 0
            numbers = (part.group_rank, part.first_rank, part.ranks)
            if any(type(number) is not int for number in numbers) or numbers[:2] != (len(parts), follows) or part.ranks < 1:
                raise ValueError(f"the agent's list of nodes is not in order at {str(each)[:200]}")
            if not isinstance(part.sources, list) or not all(isinstance(source, str) for source in part.sources):
                raise ValueError(f"the sources of node {part.group_rank} make no sense")
            parts.append(part)
        if not parts:
            raise ValueError("the list of the agent is empty")
        return parts


def open_saved(client: _memory_client.Client, found: _memory_client.Resharded) -> Optional[Saved]:
    """Returns what all ranks have saved. `None`, on all ranks: its tables are too large."""
    distributed: Any = torch.distributed
    has_group = distributed.is_available() and distributed.is_initialized()
    if not has_group and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RuntimeError(
            f"failed to load step {found.step} from memory: its nodes had other ranks, so the ranks exchange what is in it; "
            "call `torch.distributed.init_process_group` before `MemoryReader()`"
        )
    rank = distributed.get_rank() if has_group else 0
    sent: List[Any] = [None]
    failure: Optional[Exception] = None
    if rank == 0:
        try:
            parts = parts_of(found.parts)
            sent = [(None, parts, _tables(client, found.step, parts))]
        except Exception as error:
            failure = error
            sent = [(str(error), [], None)]
    if has_group and distributed.get_world_size() > 1:
        distributed.broadcast_object_list(sent, src=0)
    if failure is not None:
        raise failure
    why, parts, tables = sent[0]
    if why is not None:
        raise DamagedError(f"failed to load step {found.step} from memory: rank 0 has failed: {why}")
    return None if tables is None else Saved(client, found.step, parts, tables, rank)


def _tables(client: _memory_client.Client, step: int, parts: List[Part]) -> Optional[List[Tuple[bytes, bytes, bytes]]]:
    """Reads the header, the table and the index of objects of each rank. `None`: they are too large."""
    blocks = [(part, worker) for part in parts for worker in range(part.ranks)]

    def read(places: List[Tuple[int, int]]) -> List[bytes]:
        ranges = [(part, Range(worker, begin, size)) for (part, worker), (begin, size) in zip(blocks, places)]
        return _read(client, step, ranges)

    begins = read([(0, HEADER_SIZE)] * len(blocks))
    with reading():
        headers = [header_of(begin) for begin in begins]
    if sum(header.table_end for header in headers) > MAX_TABLES:
        return None
    tables = read([(HEADER_SIZE, header.table_end - HEADER_SIZE) for header in headers])
    rooms = [header.end - header.objects for header in headers]
    lengths = read([(header.objects, min(INDEX_BEGIN, room)) for header, room in zip(headers, rooms)])
    with reading():
        ends = [index_end(length, room) for length, room in zip(lengths, rooms)]
    if sum(header.table_end + end for header, end in zip(headers, ends)) > MAX_TABLES:
        return None
    indexes = read([(header.objects + INDEX_BEGIN, end - INDEX_BEGIN) for header, end in zip(headers, ends)])
    return list(zip(begins, tables, indexes))


def _read(client: _memory_client.Client, step: int, wanted: Sequence[Tuple[Part, Range]]) -> List[bytes]:
    """Reads ranges of any size, those of a node together."""
    found = [bytearray() for _ in wanted]
    whole = [(number, part, piece) for number, (part, each) in enumerate(wanted) for piece in pieces(each)]
    for part, group in _by_part(whole, lambda each: each[1]):
        for batch in batches([piece for _, _, piece in group]):
            mapping = client.ranges(step, part.group_rank, part.sources, batch.ranges)
            for number, place in batch.places:
                where, _, piece = group[number]
                found[where] += mapping.memory[place : place + piece.size]
    return [bytes(each) for each in found]


def _by_part(values: Sequence[Any], part_of: Any) -> Iterator[Tuple[Part, List[Any]]]:
    """Groups neighbours of the same node."""
    group: List[Any] = []
    for value in values:
        if group and part_of(group[0]).group_rank != part_of(value).group_rank:
            yield part_of(group[0]), group
            group = []
        group.append(value)
    if group:
        yield part_of(group[0]), group


class Saved:
    """The directory of all that the old ranks have saved, and how this rank reads it."""

    def __init__(
        self, client: _memory_client.Client, step: int, parts: List[Part], tables: Sequence[Tuple[bytes, bytes, bytes]], rank: int
    ) -> None:
        """`tables`: of each old rank, in order. Raises `DamagedError`."""
        self._client = client
        self._step = step
        self._rank = rank
        self._blocks = [Block(part, worker, part.first_rank + worker) for part in parts for worker in range(part.ranks)]
        # A name may be used for tensors of several shapes: ranks may have tensors of their own under one name.
        variants: Dict[str, Dict[Any, Variant]] = {}
        own: Dict[str, Any] = {}
        with reading():
            if len(tables) != len(self._blocks):
                raise ValueError(f"there are {len(tables)} tables of {len(self._blocks)} ranks")
            for number, texts in enumerate(tables):
                for name, variant in _add_block(variants, number, *texts):
                    if number == rank:
                        own[name] = variant.shape
        self._variants = {name: known[own[name]] if name in own else next(iter(known.values())) for name, known in variants.items()}
        self.tensors = {name for name, variant in self._variants.items() if variant.shape is not None}

    def metadata(self) -> Any:
        """Returns torch's description of it."""
        found: Dict[str, Any] = {}
        for name, variant in self._variants.items():
            if variant.shape is None:
                found[name] = _metadata.BytesStorageMetadata()
                continue
            chunks = [
                _metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(lengths))
                for offsets, (lengths, _) in variant.chunks.items()
            ]
            properties = _metadata.TensorProperties(dtype=variant.dtype)
            found[name] = _metadata.TensorStorageMetadata(properties, torch.Size(variant.shape), chunks)
        return _metadata.Metadata(found)

    def read(self, plan: Any, planner: Any) -> None:
        """Copies what the planner asks for."""
        tensors, objects = [], []
        for item in plan.items:
            if item.type is _planner.LoadItemType.BYTE_IO:
                objects.append((item, self._pick(self._variants[item.storage_index.fqn].objects)))
            else:
                tensors.append((item, *self._chunk(item)))
        # Before anything is changed.
        texts = self._objects(objects)
        targets = [planner.resolve_tensor(item).detach() for item, _, _ in tensors]
        self._copy([(item, shape, place, target) for (item, shape, place), target in zip(tensors, targets)])
        for (item, _, _), target in zip(tensors, targets):
            planner.commit_tensor(item, target)
        for (item, _), text in zip(objects, texts):
            planner.load_bytes(item, io.BytesIO(text))

    def _chunk(self, item: Any) -> Tuple[Tuple[int, ...], Place]:
        """Returns the shape of the chunk of an item, and where this rank reads it."""
        index = item.storage_index
        lengths, places = self._variants[index.fqn].chunks[tuple(index.offset)]
        box = list(zip(item.storage_offsets, item.lengths, lengths))
        if len(box) != len(lengths) or any(begin < 0 or begin + length > end for begin, length, end in box):
            raise MismatchError(f"failed to load step {self._step} from memory: the plan reads beyond a chunk of `{index.fqn}`")
        return lengths, self._pick(places)

    def _pick(self, places: List[Place]) -> Place:
        for place in places:
            if self._blocks[place.block].rank == self._rank:
                return place
        return places[self._rank % len(places)]

    def _order(self, place: Place) -> Tuple[int, int]:
        """Sorts so that ranks do not begin with the same node all at once."""
        return (place.block - self._rank) % len(self._blocks), place.begin

    def _objects(self, wanted: List[Tuple[Any, Place]]) -> List[bytes]:
        """Returns the objects. Raises `MismatchError` if one of another rank needs more than torch's safe types."""
        order = sorted(range(len(wanted)), key=lambda number: self._order(wanted[number][1]))
        ranges = []
        for number in order:
            place = wanted[number][1]
            block = self._blocks[place.block]
            ranges.append((block.part, Range(block.worker, place.begin, place.size)))
        texts = dict(zip(order, _read(self._client, self._step, ranges)))
        for number, (item, place) in enumerate(wanted):
            rank = self._blocks[place.block].rank
            if rank == self._rank:
                continue
            try:
                torch.load(io.BytesIO(texts[number]), map_location="cpu", weights_only=True)
            except Exception as error:
                raise MismatchError(
                    f"failed to load step {self._step} from memory: rank {rank} has saved `{item.storage_index.fqn}` as an object that "
                    f"another rank does not unpickle ({str(error).partition(chr(10))[0][:200]}); nothing was changed: load from disk"
                ) from None
        return [texts[number] for number in range(len(wanted))]

    def _copy(self, wanted: List[Tuple[Any, Tuple[int, ...], Place, Any]]) -> None:
        whole: List[Tuple[Tuple[int, int], Part, Range, Rows, Any]] = []
        for item, shape, place, target in wanted:
            block = self._blocks[place.block]
            # Of one value, a row.
            aim = target if shape else target.unsqueeze(0)
            for each in rows(shape, item.storage_offsets, item.lengths, place.dtype.itemsize):
                begin = place.begin + each.begin
                order = self._order(place._replace(begin=begin))
                whole.append((order, block.part, Range(block.worker, begin, each.size), each, (item, place.dtype, aim)))
        whole.sort(key=lambda each: each[0])
        for part, group in _by_part(whole, lambda each: each[1]):
            for batch in batches([each[2] for each in group]):
                mapping = self._client.ranges(self._step, part.group_rank, part.sources, batch.ranges)
                memory = bytes_of(mapping.memory)
                pairs = []
                for number, at in batch.places:
                    _, _, _, each, (item, dtype, aim) = group[number]
                    pairs.append((_at(aim, each), _values(memory[at : at + each.size], dtype, each, item)))
                copy(pairs)


def _at(target: Any, each: Rows) -> Any:
    """Returns the rows of the target."""
    *outer, first = each.place
    for number in outer:
        target = target[number]
    return target.narrow(0, first, each.shape[0])


def _values(memory: Any, dtype: Any, each: Rows, item: Any) -> Any:
    """Returns the values that are wanted of some rows."""
    if memory.storage_offset() % dtype.itemsize:
        memory = memory.clone()
    values = memory.view(dtype).view(each.shape)
    # The outer dimensions are chosen by their number already.
    for dimension in range(1, len(each.shape)):
        outer = len(each.place) - 1 + dimension
        values = values.narrow(dimension, item.storage_offsets[outer], item.lengths[outer])
    return values


def _add_block(
    variants: Dict[str, Dict[Any, Variant]], number: int, begin: bytes, table: bytes, index: bytes
) -> Iterator[Tuple[str, Variant]]:
    """Adds what a rank has saved, and gives each name with its variant."""
    header = header_of(begin)
    listed = index_of(index, header.end - header.objects)
    for entry in entries_of(table, "dcp", header):
        name, sizes, shape, offsets = entry["name"], tuple(entry["shape"]), *_global_of(entry)
        dtype = dtype_of(entry)
        variant = variants.setdefault(name, {}).setdefault(shape, Variant(shape, dtype))
        if entry["bytes"]:
            _, places = variant.chunks.setdefault(offsets, (sizes, []))
            if variant.chunks[offsets][0] == sizes:
                places.append(Place(number, header.base + entry["offset"], entry["bytes"], dtype))
        yield name, variant
    for entry in listed.absent:
        shape = tuple(entry["shape"])
        yield entry["name"], variants.setdefault(entry["name"], {}).setdefault(shape, Variant(shape, dtype_of(entry)))
    for name, (place, size) in listed.objects.items():
        variant = variants.setdefault(name, {}).setdefault(None, Variant(None))
        variant.objects.append(Place(number, header.objects + place, size))
        yield name, variant


def _global_of(entry: Dict[str, Any]) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Returns the shape of the whole tensor, and the offsets of this chunk in it."""
    whole = entry["global"]
    shape, (offsets,) = tuple(whole["shape"]), whole["offsets"]
    sizes = entry["shape"]
    if entry.get("stride") is not None or not len(shape) == len(offsets) == len(sizes):
        raise ValueError(f"the chunk of `{entry['name']}` makes no sense")
    for length, begin, size in zip(shape, offsets, sizes):
        # An empty chunk is never read, wherever it is.
        if type(length) is not int or type(begin) is not int or entry["bytes"] and not 0 <= begin <= begin + size <= length:
            raise ValueError(f"a chunk of `{entry['name']}` is out of range")
    return shape, tuple(offsets)
