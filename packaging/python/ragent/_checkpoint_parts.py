"""The parts of `CheckpointManager`: the ranks, what a checkpoint contains, and the folder.

What a checkpoint contains:

| value of the script | in the checkpoint |
|---|---|
| the model, its optimizers | what torch's `get_state_dict` returns, so that any number of ranks can load it |
| another one with DTensors | its `state_dict` |
| another one | its `state_dict` as one object: a tuple, which torch does not divide, as it divides a dictionary |
| the same, if it differs from rank to rank | a tensor of bytes for each rank, since torch writes an object of one rank only |

What is in the folder:

| name | content |
|---|---|
| `step-600` | the checkpoint of this step. It has this name only if it is whole |
| `.writing-600-3f2a…` | a checkpoint that is written. The last part is the token of the round |
| `.deleted-600-3f2a…` | one that is being removed |
| `.owner` | the token of the newest round that has loaded from here. A round with another token does not commit any more |
"""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import time
import warnings
import zlib
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, MutableMapping, Optional, Tuple, Union

from ._memory_rng import seed

torch: Any = import_module("torch")
_dcp: Any = import_module("torch.distributed.checkpoint")
_state_dict: Any = import_module("torch.distributed.checkpoint.state_dict")

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

# Collectives of a write wait so long for the slowest rank, whose disk may be slow.
_PATIENCE = timedelta(hours=2)
# A client of NFS may see a new name so late.
_VISIBLE = 90.0
# Before 2.7, torch's stager does not copy what is on the CPU already.
COPIES_ALL = _VERSION >= (2, 7)


class Group:
    """All ranks of torch's default process group. Without one, this process alone."""

    def __init__(self) -> None:
        """All ranks make their groups in the same order."""
        self.process_group: Any = None
        self.rank, self.ranks = 0, 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.process_group = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)
            self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        elif os.environ.get("WORLD_SIZE", "1") != "1" or _VERSION < (2, 3):
            # In torch 2.2, `dcp.load` needs a process group also for one process.
            raise RuntimeError("failed to make a CheckpointManager: there is no process group; call `init_process_group` before")

    def from_all(self, value: Any) -> List[Any]:
        """Returns the values of all ranks, by rank."""
        values = [value] * self.ranks
        if self.process_group is not None:
            torch.distributed.all_gather_object(values, value, group=self.process_group)
        return values

    def start_maximum(self, values: List[int]) -> Callable[[], List[int]]:
        """Starts to find the highest of each number. The function waits for the result."""
        tensor = torch.tensor(values, dtype=torch.int64)
        if self.process_group is None:
            return lambda: values
        work = torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX, group=self.process_group, async_op=True)
        return lambda: (work.wait(), tensor.tolist())[1]

    def failure(self, action: Callable[[], object]) -> Optional[str]:
        """Does something on all ranks. Returns the reason of the first one on which it has failed."""
        failed = None
        try:
            action()
        except (Exception, _dcp.CheckpointException) as error:
            failures = getattr(error, "failures", None) or {self.rank: (error, None)}
            rank, (cause, _) = next(iter(failures.items()))
            failed = f"rank {rank}: {type(cause).__name__}: {cause}"
        return next(filter(None, self.from_all(failed)), None)

    def save(self, found: Any, writer: Any) -> None:
        """Saves a checkpoint by `torch.distributed.checkpoint`."""
        _dcp.save(found, storage_writer=writer, process_group=self.process_group)


class State:
    """The values of a script. It has a `state_dict` itself."""

    def __init__(self, values: MutableMapping[str, Any], per_rank: Iterable[str], group: Group) -> None:
        self._values, self._group = values, group
        models = [key for key, value in values.items() if isinstance(value, torch.nn.Module)]
        self._optimizers = [key for key, value in values.items() if isinstance(value, torch.optim.Optimizer)]
        self._others = [key for key in values if key not in models + self._optimizers]
        self._per_rank = list(per_rank)
        unknown = set(self._per_rank).difference(self._others)
        if len(models) > 1 or (self._optimizers and not models) or unknown:
            wrong = f"`per_rank` has {sorted(unknown)}" if unknown else f"`state` has {len(models)} models"
            rule = "one model with its optimizers, and `per_rank` names other values; wrap a further model in an object with `state_dict`"
            raise ValueError(f"failed to make a CheckpointManager: {wrong}; `state` has at most {rule}")
        self._model = models[0] if models else None

    def state_dict(self) -> Dict[str, Any]:
        """Returns what a checkpoint contains."""
        found = self._of_model()
        for key in self._others:
            value = _plain(self._values[key])
            if key in self._per_rank:
                torch.save(value, file := io.BytesIO())
                found[self._own_name(key)] = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
            else:
                found[key] = value if _is_divided(value) else (value,)
        return found

    def copy(self) -> Dict[str, Any]:
        """Returns what a checkpoint contains, as a copy that training does not change if `COPIES_ALL`."""
        found = self.state_dict()
        return import_module("torch.distributed.checkpoint.staging").BlockingAsyncStager().stage(found) if COPIES_ALL else found

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        """Gives the content of a checkpoint to the values."""
        if self._model is not None:
            optimizers = [self._values[key] for key in self._optimizers]
            parts = {"model_state_dict": found[self._model], "optim_state_dict": found[self._optimizers[0]] if optimizers else {}}
            _state_dict.set_state_dict(self._values[self._model], optimizers, **parts)
        for key in self._others:
            own = found.get(self._own_name(key))
            if own is not None:
                value = torch.load(io.BytesIO(own.numpy().tobytes()), map_location="cpu", weights_only=False)
            elif key in found:
                value = found[key][0] if isinstance(found[key], tuple) else found[key]
            else:
                of = f"rank {self._group.rank}"
                warnings.warn(f"`{key}` of {of} is not loaded: the checkpoint has none for {of} of {self._group.ranks}", RuntimeWarning)
                continue
            if hasattr(self._values[key], "load_state_dict"):
                self._values[key].load_state_dict(value)
            else:
                self._values[key] = value

    def load(self, reader: Any, step: int) -> None:
        """Loads a checkpoint of `torch.distributed.checkpoint`, and seeds the generators of random numbers."""
        # First: the state may have generators of its own.
        seed(step)
        known = reader.read_metadata().state_dict_metadata
        found = self._of_model()
        for key in self._others:
            own = self._own_name(key)
            if own in known:
                found[own] = torch.empty(known[own].size, dtype=torch.uint8)
            elif any(name == key or name.startswith(f"{key}.") for name in known):
                found[key] = None if key in known else _plain(self._values[key])
        # In torch 2.2, `load` leaves objects out.
        load = _dcp.load if _VERSION >= (2, 3) else _dcp.load_state_dict
        load(found, storage_reader=reader, process_group=self._group.process_group)
        self.load_state_dict(found)

    def compare(self, replicated: bool) -> None:
        """Finds values that differ from rank to rank, and saves them for each rank from now on."""
        keys = [key for key in self._others if key not in self._per_rank]
        if self._group.ranks == 1 or not keys:
            return
        sums = [_sum(_plain(self._values[key])) for key in keys]
        extremes = self._group.start_maximum(sums + [-each for each in sums])()
        found = [key for place, key in enumerate(keys) if extremes[place] != -extremes[place + len(keys)]]
        self._per_rank += found
        if found and self._group.rank == 0:
            advice = "leave `replicated` out, and name them in `per_rank`" if replicated else "name them in `per_rank`"
            warnings.warn(f"{', '.join(found)} differ from rank to rank, and are saved for each rank: {advice}", RuntimeWarning)

    def _of_model(self) -> Dict[str, Any]:
        if self._model is None:
            return {}
        parts = _state_dict.get_state_dict(self._values[self._model], [self._values[key] for key in self._optimizers])
        return dict(zip([self._model, *self._optimizers[:1]], parts))

    def _own_name(self, key: str) -> str:
        return f"{key}/rank-{self._group.rank}-of-{self._group.ranks}"


class Folder:
    """A folder, and the token of this round. Only rank 0 gives and changes names. After a failure, each rank removes the draft."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], keep: int, group: Group) -> None:
        self.path, self._keep, self._group, self._is_taken = Path(path), keep, group, False
        # The reason if the last write has failed. Its text may differ from rank to rank.
        self.error: Optional[str] = None
        # A name with this token is unique.
        self._token: str = group.from_all(os.urandom(6).hex())[0]

    def newest(self) -> Tuple[int, float, Optional[str]]:
        """Returns the newest step that is whole, or -1, its age in seconds, and an error if the job must not start from step 0.

        Before it looks, it takes the folder for this round. So an earlier round commits nothing that this one would miss.
        """
        try:
            os.listdir(self.path)
            self._take()
            steps = self._steps()
        except OSError as error:
            return -1, 0.0, f"failed to read the checkpoints in `{self.path}`: {error}; make the folder once, or mount it"
        for step in reversed(steps):
            damage = _damage_of(self._of(step))
            if damage is None:
                return step, max(0.0, time.time() - self._of(step).stat().st_mtime), None
            warnings.warn(f"step {step} in `{self.path}` is damaged, so an older one is looked for: {damage}", RuntimeWarning)
        before = steps[-1] if steps else os.environ.get("RAGENT_SAVED_STEP") or None
        had = f"it had a checkpoint of step {before}, and has none that is whole"
        advice = "mount the right one, or give another folder to start from step 0"
        return -1, 0.0, None if before is None else f"failed to load from `{self.path}`: {had}; {advice}"

    def reader(self, step: int) -> Any:
        """Waits until this rank sees a checkpoint that rank 0 sees, and returns its reader."""
        path, end = self._of(step), time.monotonic() + _VISIBLE
        # A client of NFS remembers that a name does not exist, so the folder is listed first.
        while not (path.name in (os.listdir(self.path) if self.path.is_dir() else ()) and (path / ".metadata").exists()):
            if time.monotonic() > end:
                rank = self._group.rank
                raise RuntimeError(f"failed to load `{path}`: rank {rank} does not see it, and rank 0 does; mount one folder on all nodes")
            time.sleep(0.5)
        return _dcp.FileSystemReader(path)

    def write(self, step: int, found: Any) -> None:
        """Writes a checkpoint on all ranks, and lets rank 0 give it its name.

        If it fails, it sets `error`. It raises none, since no rank may wait for another one that has failed.
        """
        draft, rank = self.path / f".writing-{step}-{self._token}", self._group.rank
        actions: List[Callable[[], object]] = [
            # Torch would make a folder that is not mounted.
            lambda: os.listdir(self.path),
            lambda: self._group.save(found, _dcp.FileSystemWriter(draft, thread_count=1)),
            # Some versions of torch sync a file before they flush it.
            lambda: _sync(path for path in draft.iterdir() if path.name.startswith(f"__{rank}_")),
            lambda: self._commit(draft, step) if rank == 0 else None,
        ]
        try:
            failed = next(filter(None, map(self._group.failure, actions)), None)
            if failed is not None:
                shutil.rmtree(draft, ignore_errors=True)
                with suppress(OSError):
                    failed += f" ({shutil.disk_usage(self.path).free >> 20} MiB are free)"
            self.error = failed
        except Exception as error:
            # Other ranks may be writing still, so nothing is removed.
            self.error = f"rank {rank}: {type(error).__name__}: {error}"

    def _commit(self, draft: Path, step: int) -> None:
        """Gives the checkpoint its name if all ranks have written their parts, and removes old ones."""
        if damage := _damage_of(draft):
            raise RuntimeError(f"rank 0 does not see all that was written: {damage}; mount one folder on all nodes")
        if not self._is_taken:
            self._take()
        if (self.path / ".owner").read_text() != self._token:
            raise RuntimeError("another job, or a later start of this one, writes to this folder; give each job its own")
        _sync([draft / ".metadata", draft])
        if self._of(step).exists():
            # It was damaged, so the round has begun from an older one.
            self._of(step).rename(self.path / f".deleted-{step}-{self._token}")
        draft.rename(self._of(step))
        _sync([self.path])
        # A later step is damaged, and counts only when training is there again.
        for old in [each for each in self._steps() if each <= step][: -self._keep]:
            # It may have been removed meanwhile.
            with suppress(OSError):
                _remove(self._of(old).rename(self.path / f".deleted-{old}-{self._token}"))

    def _take(self) -> None:
        """Makes this round the one that may commit, and removes what others have not finished."""
        try:
            (draft := self.path / f".owner-{self._token}").write_text(self._token)
            draft.replace(self.path / ".owner")
            self._is_taken = True
            for path in self.path.iterdir():
                if path.name.startswith((".writing-", ".deleted-")) and self._token not in path.name:
                    _remove(path)
        except OSError as error:
            # A job may start with a full disk.
            warnings.warn(f"failed to write to `{self.path}`: {error}; training goes on", RuntimeWarning)

    def _of(self, step: int) -> Path:
        return self.path / f"step-{step}"

    def _steps(self) -> List[int]:
        names = [name[len("step-") :] for name in os.listdir(self.path) if name.startswith("step-")]
        return sorted(int(name) for name in names if name.isdecimal())


def _plain(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _is_divided(value: Any) -> bool:
    return any(hasattr(leaf, "to_local") for leaf in torch.utils._pytree.tree_flatten(value)[0])


def _sum(value: Any) -> int:
    """Returns a checksum of all but tensors and the like, whose bytes may differ although they are equal."""
    return zlib.crc32(json.dumps(value, default=lambda each: type(each).__name__, skipkeys=True).encode())


def _damage_of(path: Path) -> Optional[str]:
    """Returns what a checkpoint lacks of what its `.metadata` names, or `None`."""
    try:
        ends: Dict[str, int] = {}
        for place in _dcp.FileSystemReader(path).read_metadata().storage_data.values():
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
        return next((f"`{name}` is too short" for name, end in ends.items() if (path / name).stat().st_size < end), None)
    except Exception as error:
        # An unpickler of damaged bytes may raise anything.
        return f"{type(error).__name__}: {error}"


def _sync(paths: Iterable[Path]) -> None:
    """Waits until the disk has the files or folders."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    """Removes a folder. It may take long, and a notice may wait for this process. The end of the script waits for it."""
    threading.Thread(target=shutil.rmtree, args=(path, True), daemon=False).start()
