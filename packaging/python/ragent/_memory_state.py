"""Takes the tensors out of a script's state, and puts saved ones back.

Saving:

1. `collect` asks each object for its `state_dict`, and names the tensors in it: `optimizer.state.0.exp_avg`. Of a DTensor it takes this
   rank's part. A tensor that consists of others, such as a quantized one of torchao, gives those.
2. Everything else is pickled. In place of a tensor, the pickle has its name and a *recipe*: what is needed to make it again.

Loading, in this order, so that an error changes nothing:

1. `Restored` compares the tensors that exist on both sides.
2. It unpickles the rest. In place of a name comes the script's own tensor. If the script has none yet, as an optimizer before its first
   step, a new tensor is made by the recipe.
3. `fill` copies all tensors, and gives the objects to `load_state_dict`.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import itertools
import pickle
from importlib import import_module
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ._memory_errors import DamagedError, MismatchError
from ._memory_format import Content, Layout, copy, entry_of

torch: Any = import_module("torch")

# The number of differences that an error names.
_MAX_NAMED = 3


class Part(NamedTuple):
    """A plain tensor of this rank."""

    key: str
    """The key of the script's state."""
    name: str
    tensor: Any
    whole: Any
    """The DTensor that this is a part of, or `None`."""


class Collected:
    """The tensors of a state, and the objects that have them."""

    def __init__(self, state: Dict[str, Any]) -> None:
        self.trees: Dict[str, Any] = {}
        self.parts: List[Part] = []
        # The tensors as the script has them, by name, with their recipe.
        self.tensors: Dict[str, Tuple[Any, Any]] = {}
        self._names: Dict[int, str] = {}
        for key, value in state.items():
            tree = value.state_dict() if hasattr(value, "state_dict") else value
            self.trees[key] = tree
            self._visit(key, key, tree)

    def _visit(self, key: str, path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if id(value) in self._names:
                return
            name = path
            # The keys of dictionaries may contain dots.
            while name in self.tensors:
                name += "'"
            parts: List[Part] = []
            recipe = _take(key, name, value, parts)
            if recipe is not None:
                self._names[id(value)] = name
                self.tensors[name] = (value, recipe)
                self.parts += parts
        elif isinstance(value, dict):
            for each, item in value.items():
                self._visit(key, f"{path}.{each}", item)
        elif isinstance(value, (list, tuple)):
            for each, item in enumerate(value):
                self._visit(key, f"{path}.{each}", item)

    def layout(self, kind: str, last: Optional[Tuple[Any, Layout, List[int]]]) -> Tuple[Any, Layout, List[int]]:
        """Returns the layout, and the parts to copy. `last`: that of the last save, which is kept if it fits."""
        seen: Dict[Any, int] = {}
        same_as: Dict[int, int] = {}
        description = []
        for number, part in enumerate(self.parts):
            tensor, whole = part.tensor, part.whole
            looks = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
            if tensor.numel():
                first = seen.setdefault((tensor.data_ptr(), *looks), number)
                if first != number:
                    same_as[number] = first
            spread = None if whole is None else (whole.shape, whole.placements, _mesh_key(whole.device_mesh))
            description.append((part.key, part.name, looks, same_as.get(number), spread))
        if last is not None and last[0] == description:
            return last
        entries = [_entry(part) for part in self.parts]
        copied = [number for number in range(len(entries)) if number not in same_as]
        return description, Layout(kind, entries, same_as), copied

    def pickled(self) -> bytes:
        """Returns all that is no tensor."""
        blobs = []
        for key, tree in self.trees.items():
            file = io.BytesIO()
            try:
                _Pickler(file, self._names, self.tensors).dump(tree)
            except Exception as error:
                raise TypeError(f"failed to save the state of `{key}` in memory: {error}") from error
            blobs.append((key, file.getvalue()))
        return pickle.dumps(blobs, pickle.HIGHEST_PROTOCOL)


def _here(place: str) -> str:
    """Returns the device for a tensor that was at `place`: the current one of the same kind.

    The block of a replicated state is from local rank 0, and would fill its device for all ranks of the node.
    """
    return place.partition(":")[0]


class Restored:
    """A checkpoint that fits the script's state. Nothing of this state was changed yet."""

    def __init__(self, step: int, content: Content, state: Dict[str, Any]) -> None:
        """Raises `MismatchError` or `DamagedError`."""
        self._state = state
        self._content = content
        self._current = Collected(state)
        self._places = {entry["name"]: number for number, entry in enumerate(content.entries)}
        self._pairs: List[Tuple[Any, Any]] = []
        self._meshes: Optional[Dict[Any, Any]] = None
        blobs = _loads("all", io.BytesIO(content.objects), pickle.Unpickler)
        try:
            saved: Dict[str, bytes] = dict(blobs)
        except (TypeError, ValueError) as error:
            raise DamagedError(f"failed to read the objects of a checkpoint in memory: {error}") from None
        self._compare(step, set(saved))
        # Only now: fresh tensors need memory.
        self._trees = {
            key: _loads(key, io.BytesIO(blob), lambda file: _Unpickler(file, self._tensor)) for key, blob in saved.items()
        }
        self._compare_groups(step)
        own = {part.name: part.tensor for part in self._current.parts}
        self._pairs += [(own[name], content.tensors[number]) for name, number in self._places.items() if name in own]

    def fill(self) -> None:
        """Changes the state of the script."""
        copy(self._pairs)
        for key, tree in self._trees.items():
            value = self._state[key]
            if hasattr(value, "state_dict"):
                if not self._is_filled(key, value):
                    value.load_state_dict(tree)
            elif value is not tree:
                self._state[key] = tree

    def _compare(self, step: int, keys: Set[str]) -> None:
        wrong = [f"`{key}` is not in the checkpoint" for key in self._state if key not in keys]
        wrong += [f"`{key}` is only in the checkpoint" for key in keys if key not in self._state]
        own = {part.name: part for part in self._current.parts}
        entries = self._content.entries
        for number, entry in enumerate(entries):
            name, key = entry["name"], str(entry.get("key"))
            part = own.get(name)
            if part is not None:
                entry_now = _entry(part)
                for what in ("dtype", "shape", "global"):
                    if entry.get(what) != entry_now.get(what):
                        wrong.append(f"`{name}` has the {what} {entry_now.get(what)}, and {entry.get(what)} in the checkpoint")
                        break
            elif isinstance(self._state.get(key), torch.nn.Module):
                wrong.append(f"`{name}` is only in the checkpoint")
        for name, part in own.items():
            if name not in self._places and isinstance(self._state[part.key], torch.nn.Module):
                wrong.append(f"`{name}` is not in the checkpoint")
        _check(step, wrong)

    def _compare_groups(self, step: int) -> None:
        wrong = []
        for key, tree in self._trees.items():
            groups = [_lengths_of_groups(each) for each in (self._current.trees[key], tree)]
            if None not in groups and groups[0] != groups[1]:
                wrong.append(f"the groups of `{key}` have {groups[0]} parameters, and {groups[1]} in the checkpoint")
        _check(step, wrong)

    def _is_filled(self, key: str, value: Any) -> bool:
        """True if the copies have already changed the model itself: its state is nothing but its parameters and buffers."""
        if not isinstance(value, torch.nn.Module):
            return False
        tree = self._current.trees[key]
        if not all(id(item) in self._current._names for item in tree.values()):
            return False
        own: List[Part] = []
        for number, tensor in enumerate(itertools.chain(value.parameters(), value.buffers())):
            _take(key, str(number), tensor, own)
        places = {part.tensor.data_ptr() for part in own}
        return all(part.tensor.data_ptr() in places for part in self._current.parts if part.key == key)

    def _tensor(self, identity: Any) -> Any:
        """Returns the tensor for what the pickle has in its place."""
        name, recipe = identity
        known = self._current.tensors.get(name)
        if known is not None:
            now, before = (sorted(_names_in(each)) for each in (known[1], recipe))
            if now != before:
                raise MismatchError(f"`{name}` consists of {now}, and of {before} in the checkpoint")
            return known[0]
        return self._make(recipe)

    def _make(self, recipe: Any) -> Any:
        if isinstance(recipe, str):
            number = self._places.get(recipe)
            if number is None:
                raise DamagedError(f"`{recipe}` is not in the table")
            view = self._content.tensors[number]
            device = _here(self._content.entries[number].get("place", "cpu"))
            tensor = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device=device)
            self._pairs.append((tensor, view))
            return tensor
        if recipe[0] == "part":
            _, mesh_key, placements, shape, stride, inner = recipe
            if self._meshes is None:
                self._meshes = {_mesh_key(mesh): mesh for mesh in self._own_meshes()}
            mesh = self._meshes.get(mesh_key)
            if mesh is None:
                raise MismatchError(f"no tensor of the script has the mesh {mesh_key[:2]} of `{next(_names_in(inner))}`")
            local = self._make(inner)
            return _dtensor().from_local(
                local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
            )
        _, kind, context, shape, stride, inner = recipe
        tensors = {attribute: self._make(each) for attribute, each in inner}
        make = kind.__tensor_unflatten__
        # Torch 2.2 gives it no shape.
        whole = (torch.Size(shape), tuple(stride)) if len(inspect.signature(make).parameters) > 2 else ()
        return make(tensors, context, *whole)

    def _own_meshes(self) -> Iterator[Any]:
        for part in self._current.parts:
            if part.whole is not None:
                yield part.whole.device_mesh
        # A new optimizer has no tensors yet, but the parameters.
        for value in self._state.values():
            for group in getattr(value, "param_groups", ()):
                for parameter in group["params"]:
                    if hasattr(parameter, "device_mesh"):
                        yield parameter.device_mesh


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, names: Dict[int, str], tensors: Dict[str, Tuple[Any, Any]]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names = names
        self._tensors = tensors

    def persistent_id(self, value: Any) -> Any:
        name = self._names.get(id(value))
        return None if name is None else (name, self._tensors[name][1])


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensor: Any) -> None:
        super().__init__(file)
        self._tensor = tensor

    def persistent_load(self, identity: Any) -> Any:
        return self._tensor(identity)


def _loads(key: str, file: Any, kind: Any) -> Any:
    try:
        return kind(file).load()
    except MismatchError:
        raise
    except Exception as error:
        raise DamagedError(f"failed to read the objects of `{key}` in a checkpoint in memory: {error!r}") from error


def _take(key: str, name: str, tensor: Any, parts: List[Part], whole: Any = None) -> Any:
    """Appends the plain tensors, and returns the recipe: a name if there is only one. `None`: it can only be pickled."""
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        if hasattr(tensor, "device_mesh") and hasattr(tensor, "placements"):
            with torch.no_grad():
                inner = _take(key, name, tensor.to_local(), parts, tensor)
            if inner is None:
                return None
            mesh = _mesh_key(tensor.device_mesh)
            return "part", mesh, tuple(tensor.placements), tuple(tensor.shape), tuple(tensor.stride()), inner
        if hasattr(tensor, "local_shards"):
            raise TypeError(f"failed to save `{name}`: it is a ShardedTensor; save it by `MemoryWriter`")
        if hasattr(tensor, "__tensor_flatten__"):
            attributes, context = tensor.__tensor_flatten__()
            made = []
            for attribute in attributes:
                inner = _take(key, f"{name}.{attribute}", getattr(tensor, attribute), parts, whole)
                if inner is None:
                    raise TypeError(f"failed to save `{name}`: its {attribute} has an unknown layout")
                made.append((attribute, inner))
            return "made of", kind, context, tuple(tensor.shape), tuple(tensor.stride()), tuple(made)
        tensor = tensor.detach().as_subclass(torch.Tensor)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return None
    parts.append(Part(key, name, tensor, whole))
    return name


def _names_in(recipe: Any) -> Iterator[str]:
    if isinstance(recipe, str):
        yield recipe
    elif recipe[0] == "part":
        yield from _names_in(recipe[-1])
    else:
        for _, inner in recipe[-1]:
            yield from _names_in(inner)


def _entry(part: Part) -> Dict[str, Any]:
    entry = entry_of(part.name, part.tensor)
    entry["key"] = part.key
    whole = part.whole
    if whole is not None:
        shape, names, ranks = _mesh_key(whole.device_mesh)
        # Torch 2.2 has no method for the offsets.
        chunks = whole.__create_chunk_list__() if hasattr(whole, "__create_chunk_list__") else []
        entry["global"] = {
            "shape": list(whole.shape),
            "offsets": [list(chunk.offsets) for chunk in chunks],
            "mesh": [list(shape), list(names), ranks],
            "placements": [str(placement) for placement in whole.placements],
        }
    return entry


# By the number of the object, which is kept so that no other one gets the number.
_mesh_keys: Dict[int, Tuple[Any, Any]] = {}


def _mesh_key(mesh: Any) -> Any:
    """Returns what a mesh has in common with that of another round: its shape, names and ranks."""
    known = _mesh_keys.get(id(mesh))
    if known is None:
        ranks = hashlib.sha256(repr(mesh.mesh.flatten().tolist()).encode()).hexdigest()[:16]
        key = (tuple(mesh.mesh.shape), tuple(mesh.mesh_dim_names or ()), ranks)
        known = _mesh_keys[id(mesh)] = (key, mesh)
    return known[0]


def _dtensor() -> Any:
    try:
        return import_module("torch.distributed.tensor").DTensor
    except (ImportError, AttributeError):
        # Before torch 2.5.
        return import_module("torch.distributed._tensor").DTensor


def _lengths_of_groups(tree: Any) -> Optional[List[int]]:
    groups = tree.get("param_groups") if isinstance(tree, dict) else None
    if not isinstance(groups, list):
        return None
    return [len(group["params"]) for group in groups if isinstance(group, dict) and "params" in group]


def _check(step: int, wrong: List[str]) -> None:
    if wrong:
        more = len(wrong) - _MAX_NAMED
        text = "; ".join(wrong[:_MAX_NAMED]) + (f"; {more} more" if more > 0 else "")
        raise MismatchError(
            f"failed to load step {step} from memory: {text}; nothing was changed, and the next round begins without this "
            "checkpoint: load one from disk"
        )
