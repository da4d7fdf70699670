"""Lets the Trainer of transformers save a checkpoint before a node is taken."""

from __future__ import annotations

from importlib import import_module
from time import monotonic
from typing import Any, Optional

from .. import _saves

# Any version of transformers, or none where types are checked.
_Base: Any = import_module("transformers").TrainerCallback


class NoticeCallback(_Base):  # type: ignore[misc]
    """Saves a checkpoint when a notice arrives, and reports each checkpoint of the Trainer to the agent.

    On all ranks, the Trainer saves at the same step, at most `2 * every` steps after the notice. If the job ends or a node leaves,
    the script then exits with code 0, as by `sys.exit(0)`. What comes after `trainer.train()` is not run, so a model that is not
    trained to its end does not pass for one that is. Otherwise the training goes on. An evaluation that is due at the same step is
    skipped. Without an agent the callback does nothing.
    """

    def __init__(self, every: int = 10) -> None:
        super().__init__()
        self._every = every
        # The kind of the notice for which this step is saved.
        self._kind: Optional[str] = None
        self._begin = monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Asks for a checkpoint if there is a notice."""
        self._begin = monotonic()
        self._kind = _saves.kind_to_save(state.global_step, every=self._every)
        if self._kind is not None:
            control.should_save = True
            # It would come before the checkpoint, and take the time that is left. With `save_strategy="best"`, it would also
            # decide that nothing is saved.
            control.should_evaluate = False

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Logging is not a part of saving."""
        self._begin = monotonic()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluating is not a part of saving."""
        self._begin = monotonic()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ending an epoch is not a part of saving."""
        self._begin = monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports the checkpoint, and ends the script if the notice demands it."""
        _saves.saved(state.global_step, seconds=monotonic() - self._begin)
        kind, self._kind = self._kind, None
        if kind in _saves.ENDING:
            _saves.end_together()
