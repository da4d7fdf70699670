"""Lets `torch.distributed.checkpoint` save to memory, and load from it.

torch's planners agree on which rank writes what, and let only one of them write what several have. A node that is lost would then take
along what the others need. So the writer stores all that its rank has:

1. `prepare_local_plan` sees the plan of this rank before duplicates are dropped. The writer keeps it.
2. With cached plans (torch 2.7 and newer), a rank whose plan has not changed sends an empty one that is not usable. Then the planner has
   the plan, in the cache of its class.
3. `write_data` ignores the agreed plan, and writes the items of the kept one. The items, and how the state was flattened, are its objects.

If the ranks are those of the checkpoint, the reader offers each rank only what the same rank has written, as metadata. So torch's planner
asks it for nothing else, as long as the placements are the same. The reader checks this before it changes anything. If the ranks are
others, it offers what all ranks have written (`_memory_resharding.py`).
"""

from __future__ import annotations

import io
import pickle
import threading
from importlib import import_module
from typing import Any, Dict, List, NoReturn, Optional, SupportsIndex, Tuple

from . import _memory_client, checkpoint
from ._memory_errors import DamagedError, MismatchError
from ._memory_format import (
    INDEX_BEGIN,
    Content,
    Layout,
    copy,
    dtype_of,
    index_end,
    index_of,
    name_of_dtype,
    pack_objects,
    reading,
)
from ._memory_resharding import Saved, open_saved, product

torch: Any = import_module("torch")
_metadata: Any = import_module("torch.distributed.checkpoint.metadata")
_planner: Any = import_module("torch.distributed.checkpoint.planner")
_utils: Any = import_module("torch.distributed.checkpoint.utils")
# Any version of torch, or none where types are checked.
_storage: Any = import_module("torch.distributed.checkpoint.storage")
_Writer: Any = _storage.StorageWriter
_Reader: Any = _storage.StorageReader

# The last plan of this process that was usable, and the layout of the last save.
_last_plan: Any = None
_last: Optional[Tuple[Any, Layout]] = None


class MemoryWriter(_Writer):  # type: ignore[misc]
    """Saves one step to memory: `dcp.save(state, storage_writer=MemoryWriter(step))`.

    Afterwards `taken` is True if the agent of this rank has taken it. Without an agent nothing is saved.

    `dcp.async_save` is refused, since torch's own way to copy the state for it leaves out tensors of the CPU in some versions, so that
    later values would be saved. `dcp.save` returns as soon as the state is copied.
    """

    # With these, `dcp.async_save` asks the writer to copy the state, before it does anything else.
    _synchronize_after_execute = True
    should_synchronize_after_execute = True

    def __init__(self, step: SupportsIndex) -> None:
        super().__init__()
        self.step = checkpoint.checked_step(step)
        self.taken = False
        self._thread = threading.get_ident()
        self._plan: Any = None

    def stage(self, state_dict: Any) -> NoReturn:
        """Refuses `dcp.async_save`."""
        _refuse_async_save()

    def synchronize_staging(self) -> None:
        """Is not called, since nothing is staged."""

    def close(self) -> None:
        """Has nothing to close."""

    def __reduce__(self) -> NoReturn:
        """Refuses `dcp.async_save` in another process, which is not the worker."""
        _refuse_async_save()

    def reset(self, checkpoint_id: Any = None) -> None:
        """Ignores the name: a checkpoint in memory has none."""

    def set_up_storage_writer(self, is_coordinator: bool) -> None:
        """Refuses to save in another thread than the one that has made this writer."""
        if threading.get_ident() != self._thread:
            _refuse_async_save()

    def prepare_local_plan(self, plan: Any) -> Any:
        """Keeps the plan of this rank."""
        self._plan = plan
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        """Changes nothing."""
        return plans

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Writes the plan that was kept. What other ranks have as well is not left out."""
        self.taken = self._write(_usable(self._plan, planner), planner)
        done: Any = torch.futures.Future()
        done.set_result([])
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        """Does nothing: the coordinator of the job decides what is whole."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """A path is not for this writer."""
        return False

    def _write(self, plan: Any, planner: Any) -> bool:
        global _last
        client = _memory_client.client()
        if client is None:
            return False
        tensors: List[Any] = []
        texts: Dict[str, bytes] = {}
        absent: List[Dict[str, Any]] = []
        for item in plan.items:
            if item.type is _planner.WriteItemType.BYTE_IO:
                texts[item.index.fqn] = _bytes_of(planner.resolve_data(item))
            else:
                tensors.append(item)
        names = set(texts).union(item.index.fqn for item in tensors)
        for name, value in getattr(planner, "state_dict", {}).items():
            if name in names:
                continue
            if isinstance(value, torch.Tensor):
                # This rank is not in the tensor's mesh, but its planner asks for it.
                absent.append({"name": name, "dtype": name_of_dtype(value.dtype), "shape": list(value.size())})
            else:
                # Old versions of torch plan objects for rank 0 only.
                item = _planner.WriteItem(_metadata.MetadataIndex(name), _planner.WriteItemType.BYTE_IO)
                texts[name] = _bytes_of(planner.resolve_data(item))
        description = [(item.index.fqn, item.tensor_data) for item in tensors]
        if _last is None or _last[0] != description:
            _last = (description, Layout("dcp", [_entry(item) for item in tensors], {}))
        layout = _last[1]
        own = {"tensors": [(data.properties, data.size, data.chunk) for _, data in description], "planner": plan.planner_data}
        objects = pack_objects(texts, absent, pickle.dumps(own, pickle.HIGHEST_PROTOCOL))
        with _memory_client.save_lock:
            mapping = client.buffer(self.step, layout.end + len(objects), "dcp", False)
            if mapping is None:
                return False
            views = mapping.views_of(layout)
            pairs: List[Tuple[Any, Any]] = []
            for view, item in zip(views, tensors):
                # A planner may make it only now.
                source = planner.resolve_data(item).detach()
                if source.is_cuda:
                    mapping.register()
                    pairs.append((view, source))
                else:
                    copy([(view, source)])
            copy(pairs)
            return client.saved(self.step, layout.write(mapping.memory, objects))


class MemoryReader(_Reader):  # type: ignore[misc]
    """Loads what `MemoryWriter` has saved, also with another number of ranks.

    `step` is the step to continue from, the same on all ranks, or None if nothing is in memory:

    ```python
    torch.distributed.init_process_group()
    reader = MemoryReader()
    if reader.step is not None:
        dcp.load(state, storage_reader=reader)
    ```

    If the number of ranks has changed, rank 0 reads what each rank has saved, and sends it to all others. So all ranks make their reader
    at the same place of the script, after `init_process_group`, and with NCCL after `torch.cuda.set_device`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step: Optional[int] = None
        self._own: Optional[_Own] = None
        # What all ranks have saved, if these are other ranks.
        self._saved: Optional[Saved] = None
        self._is_open = False
        self._open()

    def _open(self) -> None:
        client = _memory_client.client(loads=True)
        found = None if client is None else client.load("dcp")
        if client is None or found is None:
            return
        step = found.step
        if self.step is not None and step != self.step:
            raise DamagedError(f"failed to load step {self.step} from memory again: there is step {step} now")
        try:
            if isinstance(found, _memory_client.Loaded):
                self._own = _Own(found.mapping)
            elif self._saved is None:
                self._saved = open_saved(client, found)
        except Exception as error:
            client.unusable(step, error)
            raise
        if self._own is None and self._saved is None:
            # The tables of this checkpoint are too large. All ranks have found the same.
            client.loaded()
            return
        self.step, self._is_open = step, True

    def reset(self, checkpoint_id: Any = None) -> None:
        """Ignores the name: a checkpoint in memory has none."""

    def read_metadata(self) -> Any:
        """Returns the metadata of what this rank may read."""
        if not self._is_open:
            # It was loaded once already.
            self._open()
        if not self._is_open:
            raise RuntimeError("failed to load from memory: it has no checkpoint; load only if `reader.step` is not None")
        return self._own.metadata() if self._own else self._known_by_all().metadata()

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool) -> None:
        """Has nothing to set up."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Changes nothing."""
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        """Changes nothing."""
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Copies what the planner asks for, and ends the use of the memory."""
        client = _memory_client.client()
        try:
            self._read(plan, planner)
        except Exception as error:
            if client is not None and self.step is not None:
                client.unusable(self.step, error)
            raise
        finally:
            self._own, self._is_open = None, False
        if client is not None:
            client.loaded()
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """A path is not for this reader."""
        return False

    def _read(self, plan: Any, planner: Any) -> None:
        if not self._is_open:
            raise RuntimeError("failed to load from memory: `read_metadata` comes first")
        if self._own is None:
            self._check(plan, planner, "the checkpoint does not have all that this rank needs", "load from disk")
            self._known_by_all().read(plan, planner)
            return
        views = [None if item.type is _planner.LoadItemType.BYTE_IO else self._own.view(item) for item in plan.items]
        self._check(plan, planner, "this rank has not saved all that it needs", "keep the placements, or load from disk")
        pairs = []
        for item, view in zip(plan.items, views):
            if view is None:
                planner.load_bytes(item, io.BytesIO(self._own.object(item.storage_index.fqn)))
            else:
                target = planner.resolve_tensor(item).detach()
                pairs.append((target, view))
        copy(pairs)
        for item, (target, _) in zip([item for item, view in zip(plan.items, views) if view is not None], pairs):
            planner.commit_tensor(item, target)

    def _known_by_all(self) -> Saved:
        if self._saved is None:
            raise RuntimeError("failed to load from memory: `read_metadata` comes first")
        return self._saved

    def _check(self, plan: Any, planner: Any, has_not: str, advice: str) -> None:
        """Raises `MismatchError` unless the items fill the tensors that they are for: otherwise some of it would keep its values."""
        state = getattr(planner, "state_dict", None)
        if state is None:
            return
        filled: Dict[Any, int] = {}
        names = set()
        for item in plan.items:
            names.add(item.dest_index.fqn)
            if item.type is not _planner.LoadItemType.BYTE_IO:
                key = item.dest_index
                filled[key] = filled.get(key, 0) + product(item.lengths)
        wrong = [key.fqn for key, count in filled.items() if _utils.find_state_dict_object(state, key).numel() != count]
        known = self._own.tensors if self._own else self._known_by_all().tensors
        for name, value in state.items():
            if name in names or not isinstance(value, torch.Tensor) or name not in known:
                continue
            local = value.to_local() if hasattr(value, "to_local") else value
            if local.numel():
                wrong.append(name)
        if wrong:
            raise MismatchError(
                f"failed to load step {self.step} from memory: {has_not} of `{wrong[0]}`; nothing was changed: {advice}"
            )


class _Own:
    """What this rank has saved."""

    def __init__(self, mapping: _memory_client.Mapping) -> None:
        """Raises `DamagedError`."""
        self._content = content = Content(mapping.memory, mapping.size, "dcp")
        room = len(content.objects)
        with reading():
            end = index_end(content.objects, room)
            self._index = index_of(content.objects[INDEX_BEGIN:end], room)
            begin, size = self._index.pickle
            pickled = _loads(content.objects[begin : begin + size])
            self._tensors, self._planner_data = pickled["tensors"], pickled["planner"]
            if len(self._tensors) != len(content.tensors):
                raise ValueError("its table and its objects differ")
            self._places = {
                (entry["name"], tuple(chunk.offsets)): number
                for number, (entry, (_, _, chunk)) in enumerate(zip(content.entries, self._tensors))
            }
        self.tensors = {entry["name"] for entry in content.entries}

    def metadata(self) -> Any:
        """Returns torch's description of it."""
        found: Dict[str, Any] = {name: _metadata.BytesStorageMetadata() for name in self._index.objects}
        for entry in self._index.absent:
            properties = _metadata.TensorProperties(dtype=dtype_of(entry))
            found[entry["name"]] = _metadata.TensorStorageMetadata(properties, torch.Size(entry["shape"]), [])
        for entry, (properties, size, chunk) in zip(self._content.entries, self._tensors):
            known = found.setdefault(entry["name"], _metadata.TensorStorageMetadata(properties, size, []))
            known.chunks.append(chunk)
        return _metadata.Metadata(found, planner_data=self._planner_data)

    def view(self, item: Any) -> Any:
        """Returns the values for an item of a plan."""
        view = self._content.tensors[self._places[item.storage_index.fqn, tuple(item.storage_index.offset)]]
        for dimension, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths)):
            view = view.narrow(dimension, begin, length)
        return view

    def object(self, name: str) -> bytes:
        """Returns an object as it was written."""
        begin, size = self._index.objects[name]
        return self._content.objects[begin : begin + size]


def _usable(plan: Any, planner: Any) -> Any:
    """Returns the plan, or the one that it stands for if plans are cached."""
    global _last_plan
    if plan is not None and not getattr(plan, "usable", True):
        cache = getattr(planner, "_cached_save_plan", {})
        plan = cache.get(getattr(planner, "_cached_plans_key", None), _last_plan)
    if plan is None:
        raise RuntimeError("failed to save to memory: the planner has given no plan of this rank")
    _last_plan = plan
    return plan


def _entry(item: Any) -> Dict[str, Any]:
    data = item.tensor_data
    dtype = data.properties.dtype
    return {
        "name": item.index.fqn,
        "dtype": name_of_dtype(dtype),
        "shape": list(data.chunk.sizes),
        "bytes": product(data.chunk.sizes) * dtype.itemsize,
        "global": {"shape": list(data.size), "offsets": [list(data.chunk.offsets)]},
    }


def _bytes_of(value: Any) -> bytes:
    return bytes(value.getbuffer()) if isinstance(value, io.BytesIO) else bytes(value)


def _loads(objects: bytes) -> Any:
    try:
        return pickle.loads(objects)
    except Exception as error:
        raise DamagedError(f"failed to read the objects of a checkpoint in memory: {error!r}") from error


def _refuse_async_save() -> NoReturn:
    raise RuntimeError(
        "failed to save a checkpoint in memory by `dcp.async_save`: use `dcp.save`, in the thread that has made the `MemoryWriter`; "
        "it returns as soon as the state is copied"
    )
