"""Saves and restores generators of random numbers, so that a restart from memory draws the numbers that would have come.

`torch.distributed.checkpoint` may give several ranks the states of one rank: with another number of ranks, and on disk, where it writes
equal names once. They would draw the same numbers. So the state has the rank and the number of ranks. If one of them differs, the rank seeds
its generators. The state is one text, since torch may take parts of it from different ranks.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from importlib import import_module
from typing import Any, Dict, List


class RandomNumbers:
    """The generators of this process: Python's, numpy's if it was imported, torch's for the CPU and for CUDA devices in use."""

    def state_dict(self) -> Dict[str, Any]:
        """Returns the states of the generators."""
        torch: Any = import_module("torch")
        numpy: Any = sys.modules.get("numpy")
        has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        state = {
            "of": _of(),
            "python": random.getstate(),
            "torch": torch.get_rng_state(),
            "numpy": numpy and numpy.random.get_state(),
            "cuda": torch.cuda.get_rng_state_all() if has_cuda else [],
        }
        # Tensors, and the arrays of numpy.
        return {"generators": json.dumps(state, default=lambda value: value.tolist())}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues from these states. Those of CUDA devices that this process does not have are ignored.

        If another rank or another number of ranks has saved them, seeds the generators of this rank.
        """
        torch: Any = import_module("torch")
        text = state["generators"]
        saved = json.loads(text)
        if saved["of"] != _of():
            # Differs from step to step, since random numbers were drawn.
            seed(hashlib.sha256(text.encode()).hexdigest())
            return
        version, words, spare = saved["python"]
        random.setstate((version, tuple(words), spare))
        torch.set_rng_state(torch.tensor(saved["torch"], dtype=torch.uint8))
        if saved["numpy"] is not None:
            # A script that has used it may import it later than this.
            numpy: Any = import_module("numpy")
            numpy.random.set_state(saved["numpy"])
        if torch.cuda.is_available():
            for device, value in zip(range(torch.cuda.device_count()), saved["cuda"]):
                torch.cuda.set_rng_state(torch.tensor(value, dtype=torch.uint8), device)


def _of() -> List[int]:
    """Returns the rank and the number of ranks."""
    return [int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))]


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
