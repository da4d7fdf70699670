"""Lays out what a rank saves in memory: a header, a table of tensors, their bytes, and objects.

| place | content |
|---|---|
| 0 | the header: magic number, version, and where the other parts begin and end |
| 40 | the table: a JSON object, with one entry for each tensor |
| from the next multiple of 64 | the tensors, each at a multiple of 64 |
| after the last tensor | the objects: pickled bytes, or those of a DCP checkpoint |

An entry of the table has the tensor's `name`, `dtype`, `shape` (of this rank's part), `offset` in the buffer, and size in `bytes`. It may
also have:

- `place`: its device, unless this is the CPU.
- `stride`, unless it is contiguous.
- `global`: of a DTensor, the shape of the whole, the offsets of this part, the mesh and the placements.

Tied tensors have the same offset. The objects come last, since their size varies from step to step: the table and the places of the
tensors stay the same, and are made once.

Another number of ranks may read a DCP checkpoint. So these ranks find each object of it without unpickling anything:

| place in the objects | content |
|---|---|
| 0 | the length of the index, 8 bytes |
| 8 | the index: a JSON object |
| after the index | the bytes of each object, and a pickle that only the same rank reads |

The index has the `name`, `offset` and `size` of each of the `objects`, the `offset` and `size` of the `pickle`, both from the end of the
index, and the `name`, `dtype` and `shape` of the tensors that are `absent` from this rank.

Only ranks of the same job read it. Nothing here trusts the numbers, though: a buffer that was torn must not end the process.
"""

from __future__ import annotations

import contextlib
import json
import struct
import warnings
from importlib import import_module
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ._memory_errors import DamagedError

torch: Any = import_module("torch")

_MAGIC = b"RAGENTCK"
_VERSION = 1
# Magic number, version, kind; end of the table; begin and end of the objects.
_HEADER = struct.Struct("<8sI4xQQQ")
HEADER_SIZE = _HEADER.size
_ALIGNMENT = 64
_INDEX_LENGTH = struct.Struct("<Q")
INDEX_BEGIN = _INDEX_LENGTH.size


class Layout:
    """Where each tensor goes. It is made once for all states with the same names, shapes and types."""

    def __init__(self, kind: str, entries: List[Dict[str, Any]], same_as: Dict[int, int]) -> None:
        """`same_as`: the entries whose tensor is that of an earlier one, and which."""
        # The offsets are in the table, whose length depends on them. So they are counted from the end of the table.
        place = 0
        for number, entry in enumerate(entries):
            if number in same_as:
                entry["offset"] = entries[same_as[number]]["offset"]
            else:
                entry["offset"] = place
                place += _aligned(entry["bytes"])
        self.entries = entries
        self.table = json.dumps({"kind": kind, "tensors": entries}, separators=(",", ":")).encode()
        self.base = _aligned(_HEADER.size + len(self.table))
        self.end = self.base + place

    def write(self, memory: Any, objects: bytes) -> int:
        """Writes all but the tensors, and returns the number of bytes in use."""
        size = self.end + len(objects)
        table_end = _HEADER.size + len(self.table)
        memory[: _HEADER.size] = _HEADER.pack(_MAGIC, _VERSION, table_end, self.end, size)
        memory[_HEADER.size : table_end] = self.table
        memory[self.end : size] = objects
        return size

    def views(self, memory: Any) -> List[Any]:
        """Returns the tensors in the buffer."""
        whole = bytes_of(memory)
        return [_view(whole, entry, self.base) for entry in self.entries]


class Content:
    """What was read from a buffer. The tensors are views of it, so they must not outlive the load."""

    def __init__(self, memory: Any, size: int, kind: str) -> None:
        """Raises `DamagedError`."""
        with reading():
            header = header_of(memory[: _HEADER.size])
            if header.end > size:
                raise ValueError("its parts are out of range")
            self.entries = entries_of(memory[_HEADER.size : header.table_end], kind, header)
            self.objects: bytes = memory[header.objects : header.end]
            whole = bytes_of(memory)
            self.tensors = [_view(whole, entry, header.base) for entry in self.entries]


class Header(NamedTuple):
    """Where the parts of a buffer begin and end."""

    table_end: int
    base: int
    """Where the tensors begin."""
    objects: int
    end: int


class Index(NamedTuple):
    """Where the objects of a DCP checkpoint are, from the beginning of all objects."""

    objects: Dict[str, Tuple[int, int]]
    """The place and the size of each."""
    absent: List[Dict[str, Any]]
    """The name, type and shape of each tensor that this rank has no part of."""
    pickle: Tuple[int, int]


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raises `DamagedError` if what is read in this block makes no sense."""
    try:
        yield
    except DamagedError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError, struct.error) as error:
        raise DamagedError(f"failed to read a checkpoint in memory: {error}") from None


def header_of(begin: bytes) -> Header:
    """Reads the first bytes of a buffer. Raises `ValueError`."""
    if len(begin) < _HEADER.size:
        raise ValueError("it is too short")
    magic, version, table_end, objects, end = _HEADER.unpack(begin)
    if magic != _MAGIC:
        raise ValueError("it does not begin with the magic number")
    if version != _VERSION:
        raise ValueError(f"its version is {version}, and this module reads version {_VERSION}")
    base = _aligned(table_end)
    if not _HEADER.size <= table_end <= base <= objects <= end:
        raise ValueError("its parts are out of range")
    return Header(table_end, base, objects, end)


def entries_of(table: bytes, kind: str, header: Header) -> List[Dict[str, Any]]:
    """Reads a table. Raises `ValueError`, or what Python raises for a value of the wrong type."""
    whole = json.loads(table)
    if whole["kind"] != kind:
        raise ValueError(f"its kind is {whole['kind']!r}")
    return [_checked(entry, header.objects - header.base) for entry in whole["tensors"]]


def pack_objects(objects: Dict[str, bytes], absent: List[Dict[str, Any]], pickled: bytes) -> bytes:
    """Returns the objects of a DCP checkpoint, with their index."""
    place = 0
    listed = []
    for name, content in objects.items():
        listed.append({"name": name, "offset": place, "size": len(content)})
        place += len(content)
    index = {"objects": listed, "absent": absent, "pickle": {"offset": place, "size": len(pickled)}}
    text = json.dumps(index, separators=(",", ":")).encode()
    return b"".join([_INDEX_LENGTH.pack(len(text)), text, *objects.values(), pickled])


def index_end(begin: bytes, room: int) -> int:
    """Returns where the index ends, by the first bytes of the objects. They are `room` bytes. Raises `ValueError`."""
    if len(begin) < INDEX_BEGIN:
        raise ValueError("it has no index of objects")
    (length,) = _INDEX_LENGTH.unpack(begin[:INDEX_BEGIN])
    end: int = INDEX_BEGIN + length
    if end > room:
        raise ValueError("its index of objects is out of range")
    return end


def index_of(text: bytes, room: int) -> Index:
    """Reads an index. All objects are `room` bytes. Raises `ValueError`, or what Python raises for a value of the wrong type."""
    index = json.loads(text)
    end = INDEX_BEGIN + len(text)

    def place(entry: Dict[str, Any]) -> Tuple[int, int]:
        begin, size = entry["offset"], entry["size"]
        if type(begin) is not int or type(size) is not int or begin < 0 or size < 0 or end + begin + size > room:
            raise ValueError(f"the entry {str(entry)[:200]} is out of range")
        return end + begin, size

    names = [entry["name"] for entry in [*index["objects"], *index["absent"]]]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("an object has no name")
    for entry in index["absent"]:
        dtype_of(entry)
        if any(type(length) is not int or length < 0 for length in entry["shape"]):
            raise ValueError(f"the shape of `{entry['name']}` is wrong")
    objects = {entry["name"]: place(entry) for entry in index["objects"]}
    return Index(objects, index["absent"], place(index["pickle"]))


def entry_of(name: str, tensor: Any) -> Dict[str, Any]:
    """Returns the entry of a plain tensor, without its offset."""
    entry = {
        "name": name,
        "dtype": name_of_dtype(tensor.dtype),
        "shape": list(tensor.shape),
        "bytes": tensor.numel() * tensor.element_size(),
    }
    if tensor.device.type != "cpu":
        entry["place"] = str(tensor.device)
    if not tensor.is_contiguous():
        # The strides of a copy in the same order, if the tensor has no gaps; otherwise those of a contiguous one.
        stride = torch.empty_like(tensor, device="meta").stride()
        if stride != torch.empty(tensor.shape, device="meta").stride():
            entry["stride"] = list(stride)
    return entry


def name_of_dtype(dtype: Any) -> str:
    """Returns the name that a type has in torch."""
    return str(dtype).partition(".")[2]


def dtype_of(entry: Dict[str, Any]) -> Any:
    """Returns the type of a tensor."""
    dtype = getattr(torch, entry["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"`{entry['name']}` has the unknown type {entry['dtype']!r}")
    return dtype


def _checked(entry: Dict[str, Any], room: int) -> Dict[str, Any]:
    """Raises `ValueError` unless the tensor lies in the `room` bytes for tensors."""
    name, shape = entry["name"], entry["shape"]
    numbers = [entry["offset"], entry["bytes"], *shape, *entry.get("stride", ())]
    if not isinstance(name, str) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"the entry {str(entry)[:200]} has a wrong value")
    count = 1
    for length in shape:
        count *= length
    item = dtype_of(entry).itemsize
    if entry["bytes"] != count * item or entry["offset"] % _ALIGNMENT:
        raise ValueError(f"the size of `{name}` is wrong")
    if entry["offset"] + entry["bytes"] > room:
        raise ValueError(f"`{name}` is out of range")
    stride = entry.get("stride")
    if stride is not None and count:
        last = sum((length - 1) * step for length, step in zip(shape, stride))
        if len(stride) != len(shape) or last >= count:
            raise ValueError(f"the strides of `{name}` are wrong")
    return entry


def bytes_of(memory: Any) -> Any:
    with warnings.catch_warnings():
        # That nothing may be written to a buffer for reading.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(memory, dtype=torch.uint8)


def _view(whole: Any, entry: Dict[str, Any], base: int) -> Any:
    begin = base + entry["offset"]
    dtype, shape = dtype_of(entry), entry["shape"]
    if not entry["bytes"]:
        # A view needs a place in the buffer, which the last tensor might not have.
        return whole[:0].view(dtype).view(shape)
    flat = whole[begin : begin + entry["bytes"]].view(dtype)
    stride: Optional[List[int]] = entry.get("stride")
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT


def copy(pairs: List[Tuple[Any, Any]]) -> None:
    """Copies the second tensor of each pair to the first one, and waits for devices."""
    devices = set()
    with torch.no_grad():
        for target, source in pairs:
            is_cuda = source.is_cuda or target.is_cuda
            target.copy_(source, non_blocking=is_cuda)
            if is_cuda:
                devices.add(source.device if source.is_cuda else target.device)
    for device in devices:
        torch.cuda.current_stream(device).synchronize()


def has_cuda(tensors: List[Any]) -> bool:
    """True if a tensor is in the memory of a CUDA device."""
    return any(tensor.is_cuda for tensor in tensors)
