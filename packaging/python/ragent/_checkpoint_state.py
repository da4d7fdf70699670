"""Gathers what a checkpoint contains, and gives it back.

| value of the script | in the checkpoint |
|---|---|
| the model, its optimizers | what torch's `get_state_dict` returns, so that any number of ranks can load it |
| another one with DTensors | its `state_dict` |
| another one | its `state_dict` as one object: a tuple, which torch does not divide, as it divides a dictionary |
| the same, if it differs from rank to rank | a tensor of bytes for each rank, since torch writes an object of one rank only |
"""

from __future__ import annotations

import io
import json
import warnings
import zlib
from importlib import import_module
from typing import Any, Dict, Iterable, Mapping, MutableMapping

from ._checkpoint_group import Group

torch: Any = import_module("torch")
_dcp: Any = import_module("torch.distributed.checkpoint")
_parts: Any = import_module("torch.distributed.checkpoint.state_dict")
_pytree: Any = import_module("torch.utils._pytree")


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
            raise ValueError(
                f"failed to make a CheckpointManager: {wrong}; `state` has at most one model with its optimizers, and `per_rank` names "
                "others of its values; pass a further model as an object that has `state_dict` and `load_state_dict`"
            )
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

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        """Gives the content of a checkpoint to the values."""
        if self._model is not None:
            optimizers = [self._values[key] for key in self._optimizers]
            of_optimizers = found[self._optimizers[0]] if optimizers else {}
            model = self._values[self._model]
            _parts.set_state_dict(model, optimizers, model_state_dict=found[self._model], optim_state_dict=of_optimizers)
        for key in self._others:
            own = found.get(self._own_name(key))
            if own is not None:
                value = torch.load(io.BytesIO(own.numpy().tobytes()), map_location="cpu", weights_only=False)
            elif key in found:
                value = found[key][0] if isinstance(found[key], tuple) else found[key]
            else:
                ranks = self._group.ranks
                warnings.warn(
                    f"`{key}` of rank {self._group.rank} begins anew: the checkpoint has none for this rank of {ranks}", RuntimeWarning
                )
                continue
            if hasattr(self._values[key], "load_state_dict"):
                self._values[key].load_state_dict(value)
            else:
                self._values[key] = value

    def load(self, reader: Any) -> None:
        """Loads a checkpoint of `torch.distributed.checkpoint`."""
        known = reader.read_metadata().state_dict_metadata
        found = self._of_model()
        for key in self._others:
            own = self._own_name(key)
            if own in known:
                found[own] = torch.empty(known[own].size, dtype=torch.uint8)
            elif key in known:
                found[key] = None
            elif any(name.startswith(f"{key}.") for name in known):
                found[key] = _plain(self._values[key])
        _dcp.load(found, storage_reader=reader, process_group=self._group.process_group)
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
        parts = _parts.get_state_dict(self._values[self._model], [self._values[key] for key in self._optimizers])
        return dict(zip([self._model, *self._optimizers[:1]], parts))

    def _own_name(self, key: str) -> str:
        return f"{key}/rank-{self._group.rank}-of-{self._group.ranks}"


def _plain(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _is_divided(value: Any) -> bool:
    return any(hasattr(leaf, "to_local") for leaf in _pytree.tree_flatten(value)[0])


def _sum(value: Any) -> int:
    """Returns a checksum of all but tensors and the like, whose bytes may differ although they are equal."""
    return zlib.crc32(json.dumps(value, default=lambda each: type(each).__name__, skipkeys=True).encode())
