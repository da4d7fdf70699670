"""Lets `torch.distributed.checkpoint` save to memory, and load from it.

torch's planners agree on which rank writes what, and let only one of them write what several have. A node that is lost would then take
along what the others need. So the writer stores all that its rank has:

1. `prepare_local_plan` sees the plan of this rank before duplicates are dropped. The writer keeps it.
2. With cached plans (torch 2.7 and newer), a rank whose plan has not changed sends an empty one that is not usable. Then the planner has
   the plan, in the cache of its class.
3. `write_data` ignores the agreed plan, and writes the items of the kept one. The items, and how the state was flattened, are its objects.

The reader offers each rank only what the same rank has written, as metadata. So torch's planner asks it for nothing else, as long as
the number of ranks and the placements are the same. It checks this before it changes anything.
"""

from __future__ import annotations

import io
import pickle
import threading
from importlib import import_module
from typing import Any, Dict, List, NoReturn, Optional, SupportsIndex, Tuple

from . import _memory_client, checkpoint
from ._memory_errors import DamagedError, MismatchError
from ._memory_format import Content, Layout, copy, name_of_dtype

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
        absent: List[Tuple[str, Any, Any]] = []
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
                absent.append((name, _metadata.TensorProperties(dtype=value.dtype), value.size()))
            else:
                # Old versions of torch plan objects for rank 0 only.
                item = _planner.WriteItem(_metadata.MetadataIndex(name), _planner.WriteItemType.BYTE_IO)
                texts[name] = _bytes_of(planner.resolve_data(item))
        description = [(item.index.fqn, item.tensor_data) for item in tensors]
        if _last is None or _last[0] != description:
            _last = (description, Layout("dcp", [_entry(item) for item in tensors], {}))
        layout = _last[1]
        objects = pickle.dumps(
            {
                "tensors": [(data.properties, data.size, data.chunk) for _, data in description],
                "absent": absent,
                "bytes": texts,
                "planner": plan.planner_data,
            },
            pickle.HIGHEST_PROTOCOL,
        )
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
    """Loads what the same rank has saved by `MemoryWriter`.

    `step` is the step to continue from, the same on all ranks, or None if nothing is in memory:

    ```python
    reader = MemoryReader()
    if reader.step is not None:
        dcp.load(state, storage_reader=reader)
    ```
    """

    def __init__(self) -> None:
        super().__init__()
        self.step: Optional[int] = None
        self._content: Optional[Content] = None
        self._objects: Any = None
        self._places: Dict[Any, int] = {}
        self._open()

    def _open(self) -> None:
        client = _memory_client.client(loads=True)
        found = None if client is None else client.load("dcp")
        if client is None or found is None:
            return
        step, _, mapping = found
        if self.step is not None and step != self.step:
            raise DamagedError(f"failed to load step {self.step} from memory again: there is step {step} now")
        try:
            content = Content(mapping.memory, mapping.size, "dcp")
            objects = _loads(content.objects)
            if len(objects["tensors"]) != len(content.tensors):
                raise DamagedError("failed to read a checkpoint in memory: its table and its objects differ")
            self._places = {
                (entry["name"], tuple(chunk.offsets)): number
                for number, (entry, (_, _, chunk)) in enumerate(zip(content.entries, objects["tensors"]))
            }
        except Exception as error:
            client.unusable(step, error)
            raise
        self.step, self._content, self._objects = step, content, objects

    def reset(self, checkpoint_id: Any = None) -> None:
        """Ignores the name: a checkpoint in memory has none."""

    def read_metadata(self) -> Any:
        """Returns the metadata of what this rank has written."""
        if self._content is None:
            # It was loaded once already.
            self._open()
        if self._content is None:
            raise RuntimeError("failed to load from memory: it has no checkpoint; load only if `reader.step` is not None")
        found: Dict[str, Any] = {name: _metadata.BytesStorageMetadata() for name in self._objects["bytes"]}
        for name, properties, size in self._objects["absent"]:
            found[name] = _metadata.TensorStorageMetadata(properties, size, [])
        for entry, (properties, size, chunk) in zip(self._content.entries, self._objects["tensors"]):
            known = found.setdefault(entry["name"], _metadata.TensorStorageMetadata(properties, size, []))
            known.chunks.append(chunk)
        return _metadata.Metadata(found, planner_data=self._objects["planner"])

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
            self._content = self._objects = None
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
        content = self._content
        if content is None:
            raise RuntimeError("failed to load from memory: `read_metadata` comes first")
        views: List[Any] = []
        for item in plan.items:
            if item.type is _planner.LoadItemType.BYTE_IO:
                views.append(None)
                continue
            index = item.storage_index
            view = content.tensors[self._places[index.fqn, tuple(index.offset)]]
            for dimension, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                view = view.narrow(dimension, begin, length)
            views.append(view)
        self._check(plan, planner)
        pairs = []
        for item, view in zip(plan.items, views):
            if view is None:
                planner.load_bytes(item, io.BytesIO(self._objects["bytes"][item.storage_index.fqn]))
            else:
                target = planner.resolve_tensor(item).detach()
                pairs.append((target, view))
        copy(pairs)
        for item, (target, _) in zip([item for item, view in zip(plan.items, views) if view is not None], pairs):
            planner.commit_tensor(item, target)

    def _check(self, plan: Any, planner: Any) -> None:
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
                filled[key] = filled.get(key, 0) + _product(item.lengths)
        wrong = [key.fqn for key, count in filled.items() if _utils.find_state_dict_object(state, key).numel() != count]
        for name, value in state.items():
            if name in names or not isinstance(value, torch.Tensor) or name not in self._known():
                continue
            local = value.to_local() if hasattr(value, "to_local") else value
            if local.numel():
                wrong.append(name)
        if wrong:
            raise MismatchError(
                f"failed to load step {self.step} from memory: this rank has not saved all that it needs of `{wrong[0]}`; nothing "
                "was changed: keep the number of ranks and the placements, or load from disk"
            )

    def _known(self) -> Any:
        return {entry["name"] for entry in self._content.entries} if self._content else ()


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
        "bytes": _product(data.chunk.sizes) * dtype.itemsize,
        "global": {"shape": list(data.size), "offsets": [list(data.chunk.offsets)]},
    }


def _product(lengths: Any) -> int:
    count = 1
    for length in lengths:
        count *= length
    return count


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
