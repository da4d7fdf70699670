"""Lets the Trainer of Lightning save a checkpoint before a node is taken.

The callback works with both packages of Lightning, `lightning` and `pytorch_lightning`. It uses those that the script has imported.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from time import monotonic
from typing import Any, List, Optional, Tuple

from .. import _saves

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _packages() -> List[Any]:
    loaded = [sys.modules[name] for name in _PACKAGES if sys.modules.get(name)]
    if loaded:
        return loaded
    for name in _PACKAGES:
        if find_spec(name.partition(".")[0]):
            return [import_module(name)]
    raise ModuleNotFoundError(
        "failed to import a callback for Lightning: neither `lightning` nor `pytorch_lightning` is installed; install one of them",
        name="lightning",
    )


_bases: Any = tuple(package.Callback for package in _packages())
_Base: Any = type("_Base", _bases, {})


class NoticeCallback(_Base):  # type: ignore[misc]
    """Saves a checkpoint when a notice arrives, and reports each checkpoint of the Trainer to the agent.

    On all ranks, the Trainer saves at the same step, at most `2 * every` steps after the notice. The file is `path`, by default
    `last-notice.ckpt` in the folder of the Trainer's `ModelCheckpoint`, where `fit(ckpt_path="last")` finds it. A later notice
    replaces it. If the job ends or a node leaves, the script then exits with code 0, as by `sys.exit(0)`, and what comes after
    `trainer.fit()` is not run. `trainer.should_stop` would not do: Lightning then saves the epoch as if all of its batches had
    been trained. Without an agent the callback does nothing.
    """

    def __init__(self, every: int = 10, path: Optional[str] = None) -> None:
        super().__init__()
        self._every = every
        self._path = path
        self._step = -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Reports checkpoints from now on, those of `ModelCheckpoint` as well."""
        # The step at which a training resumes is on storage.
        self._step = trainer.global_step
        _unwrap(trainer)
        trainer.save_checkpoint = _Saving(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """Saves a checkpoint if there is a notice."""
        step = trainer.global_step
        # While gradients are accumulated, a step has several batches, and a checkpoint would lose them.
        if step == self._step:
            return
        self._step = step
        kind = _saves.kind_to_save(step, every=self._every)
        if kind is None:
            return
        begin = monotonic()
        trainer.save_checkpoint(self._path or _default_path(trainer))
        plugin = _asynchronous(trainer)
        if plugin is not None:
            # Waits until its thread has written the checkpoint. The plugin begins again at the next one.
            plugin.teardown()
            _saves.saved(step, seconds=monotonic() - begin)
        if kind in _saves.ENDING:
            _saves.end_together()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leaves the Trainer as it was."""
        _unwrap(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leaves the Trainer as it was."""
        _unwrap(trainer)


class _Saving:
    """`Trainer.save_checkpoint`, with a report of each checkpoint from which a training can be resumed."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._save = trainer.save_checkpoint

    def __call__(self, filepath: Any, weights_only: Optional[bool] = None, *args: Any, **kwargs: Any) -> None:
        begin = monotonic()
        self._save(filepath, weights_only, *args, **kwargs)
        # Tuners save hidden files, which they remove.
        is_temporary = os.path.basename(os.fspath(filepath)).startswith(".")
        if not (weights_only or is_temporary or _asynchronous(self._trainer)):
            _saves.saved(self._trainer.global_step, seconds=monotonic() - begin)


def _unwrap(trainer: Any) -> None:
    vars(trainer).pop("save_checkpoint", None)


def _default_path(trainer: Any) -> str:
    folder = getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir
    return os.path.join(folder, "last-notice.ckpt")


def _asynchronous(trainer: Any) -> Any:
    """Returns the plugin that saves checkpoints in another thread, or `None`."""
    plugin = trainer.strategy.checkpoint_io
    kinds: Tuple[Any, ...] = tuple(import_module(package.__name__ + ".plugins.io").AsyncCheckpointIO for package in _packages())
    return plugin if isinstance(plugin, kinds) else None
