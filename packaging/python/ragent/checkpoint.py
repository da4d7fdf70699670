"""Saves checkpoints in the memory of the nodes, and continues from the newest one after a failure.

```python
import ragent.checkpoint as memory
state = {"model": model, "optimizer": optimizer, "sampler": sampler}
step = memory.load(state)           # None on all ranks: nothing in memory
if step is None:
    step = load_from_disk(state)
while step < steps:
    train_step()
    step += 1
    if step % 10 == 0:
        memory.save(step, state)    # returns when `state` may change again
    if step % 1000 == 0:
        save_to_disk(step, state)   # stays: memory ends with the job
```

The agent of the node keeps what `save` has copied, and gives it to the workers of the next round. Without an agent, with
`--memory-limit 0`, and in a process that the worker has forked, `load` returns None and `save` False.

torch is imported by the functions that need it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, Mapping, MutableMapping, Optional, SupportsIndex, Tuple

from . import _memory_client
from ._memory_errors import DamagedError, MismatchError
from ._memory_rng import RandomNumbers, seed
from ._steps import whole

if TYPE_CHECKING:
    from ._memory_dcp import MemoryReader, MemoryWriter

__all__ = ["DamagedError", "MemoryReader", "MemoryWriter", "MismatchError", "load", "newest_whole", "rng", "save"]

# The key of the random numbers, unless the script has its own.
_RNG = "rng"

# Of saves, also by `MemoryWriter`.
_lock = _memory_client.save_lock
# The layout of the last save.
_last: Optional[Tuple[Any, Any, Any]] = None


def load(state: MutableMapping[str, Any]) -> Optional[int]:
    """Puts the newest checkpoint in memory into `state`, and returns its step. `None`: there is none, and nothing was changed.

    The result is the same on all ranks. Tensors are copied into those of `state`. What does not exist yet, such as the state of a new
    optimizer, is given to `load_state_dict`. A value that has no `load_state_dict` is replaced in `state`. The generators of random
    numbers go on from where they were.

    If the state is another one than was saved, it raises `MismatchError` and changes nothing. If the connection to the agent has
    broken, or the content makes no sense, it raises `DamagedError`: other ranks may have loaded the step, so this one must not begin
    from disk.
    """
    _check(state, "load(state)")
    client = _memory_client.client(loads=True)
    found = None if client is None else client.load("state")
    if client is None or found is None:
        return None
    if not isinstance(found, _memory_client.Loaded):
        damage = DamagedError(f"failed to load step {found.step} from memory: the agent has given a checkpoint of DCP")
        client.unusable(found.step, damage)
        raise damage
    step, is_replicated, mapping = found
    from ._memory_format import Content
    from ._memory_state import Restored

    has_own_rng = _RNG in state
    # The state of the script, so that values can be replaced in it.
    whole = dict(state)
    if not has_own_rng and not is_replicated:
        whole[_RNG] = rng()
    content = restored = None
    try:
        content = Content(mapping.memory, mapping.size, "state")
        restored = Restored(step, content, whole)
        restored.fill()
    except Exception as error:
        client.unusable(step, error)
        raise
    finally:
        # Nothing may refer to the mapping any more.
        content = restored = None
        del found, mapping
    client.loaded()
    for key in state:
        if whole[key] is not state[key]:
            state[key] = whole[key]
    if is_replicated and not has_own_rng:
        seed(step)
    return step


def save(step: SupportsIndex, state: MutableMapping[str, Any], *, replicated: bool = False) -> bool:
    """Copies `state` to memory, and returns when it may change again. True if the agent has taken it.

    Every rank calls it with the same steps. Its values have a `state_dict`, or are tensors, numbers and other objects that can be
    pickled. The generators of random numbers are saved as well, unless `state` has a key `rng`.

    With `replicated`, all ranks have the same state, as with DDP. Only local rank 0 of each node copies it; the others return
    True at once. Random numbers are not saved then: after `load`, each rank seeds its generators by its rank, the step and
    `torch.initial_seed()`.

    A checkpoint that was taken is not safe yet: `newest_whole` returns the newest step that is.
    """
    global _last
    number = checked_step(step)
    _check(state, "save(step, state)")
    client = _memory_client.client()
    if client is None:
        return False
    if replicated and os.environ.get("LOCAL_RANK", "0") != "0":
        return True
    if _lock.is_own():
        # A signal handler has interrupted another save.
        return False
    from . import _memory_format
    from ._memory_state import Collected

    whole: Dict[str, Any] = dict(state)
    if not replicated:
        whole.setdefault(_RNG, rng())
    with _lock:
        collected = Collected(whole)
        _last = collected.layout("state", _last)
        _, layout, copied = _last
        objects = collected.pickled()
        mapping = client.buffer(number, layout.end + len(objects), "state", replicated)
        if mapping is None:
            return False
        views = mapping.views_of(layout)
        sources = [part.tensor for part in collected.parts]
        if _memory_format.has_cuda(sources):
            mapping.register()
        _memory_format.copy([(views[place], sources[place]) for place in copied])
        return client.saved(number, layout.write(mapping.memory, objects))


def newest_whole() -> Optional[int]:
    """Returns the newest step that is whole: all ranks have saved it, and each copy is made or was given up. `None`: there is none."""
    client = _memory_client.client()
    return None if client is None else client.newest()


def rng() -> RandomNumbers:
    """Returns the generators of random numbers as an object with `state_dict` and `load_state_dict`, to be saved by DCP.

    If another rank or another number of ranks has saved them, `load_state_dict` seeds the generators of this rank.
    """
    return RandomNumbers()


def checked_step(step: SupportsIndex) -> int:
    """Returns the step as a number. Raises `TypeError` or `ValueError` if it is none from 0 to 2**53 - 1."""
    return whole(step, "save a checkpoint in memory: step", "save(int(n), state)")


def _check(state: Any, call: str) -> None:
    """Raises `TypeError` unless `state` is a dictionary with texts as keys."""
    if isinstance(state, Mapping):
        wrong = [f"the key {key!r}" for key in state if not isinstance(key, str)]
    else:
        wrong = [f"a {type(state).__name__}"]
    if wrong:
        raise TypeError(
            f"failed to call `{call}`: `state` is a dictionary with texts as keys, and not {wrong[0]}; pass a dictionary such as "
            '`{"model": model, "optimizer": optimizer}`'
        )


def __getattr__(name: str) -> Any:
    # Their base classes are torch's.
    if name in ("MemoryReader", "MemoryWriter"):
        from . import _memory_dcp

        return getattr(_memory_dcp, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
