"""Saves and restores generators of random numbers, so that a restart from memory draws the numbers that would have come.

`torch.distributed.checkpoint` can load with another number of ranks. Then several ranks may get the states of one rank, and would draw the
same numbers. So the number of ranks is a part of the state: if it differs, each rank seeds its generators.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from importlib import import_module
from typing import Any, Dict


class RandomNumbers:
    """The generators of this process: Python's, numpy's if it was imported, torch's for the CPU and for CUDA devices in use."""

    def state_dict(self) -> Dict[str, Any]:
        """Returns the states of the generators."""
        torch: Any = import_module("torch")
        state: Dict[str, Any] = {"ranks": _ranks(), "python": random.getstate(), "torch": torch.get_rng_state()}
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            found = numpy.random.get_state()
            if isinstance(found, tuple):
                # Another rank unpickles no objects of numpy.
                found = tuple(value.tolist() if isinstance(value, numpy.ndarray) else value for value in found)
            state["numpy"] = found
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues from these states. Those of CUDA devices that this process does not have are ignored.

        If another number of ranks has saved them, seeds the generators of this rank.
        """
        torch: Any = import_module("torch")
        if state.get("ranks", _ranks()) != _ranks():
            # Differs from step to step, since random numbers were drawn.
            values = [state["python"], state["torch"].tolist(), state.get("numpy"), [each.tolist() for each in state.get("cuda") or ()]]
            seed(hashlib.sha256(repr(values).encode()).hexdigest())
            return
        version, words, spare = state["python"]
        random.setstate((version, tuple(words), spare))
        torch.set_rng_state(state["torch"].cpu())
        if state.get("numpy") is not None:
            # A script that has used it may import it later than this.
            numpy: Any = import_module("numpy")
            numpy.random.set_state(state["numpy"])
        if state.get("cuda") and torch.cuda.is_available():
            for device, value in zip(range(torch.cuda.device_count()), state["cuda"]):
                torch.cuda.set_rng_state(value.cpu(), device)


def _ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def seed(origin: object) -> None:
    """Seeds the generators of this rank, since the saved states are those of other ranks. `origin` is the step, for example."""
    torch: Any = import_module("torch")
    text = f"{torch.initial_seed()} {origin} {os.environ.get('RANK', '0')}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    random.seed(number)
    torch.manual_seed(number)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % 2**32)
