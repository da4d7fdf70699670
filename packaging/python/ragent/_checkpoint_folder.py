"""Keeps checkpoints of `torch.distributed.checkpoint` in a folder, which all ranks see.

| name | content |
|---|---|
| `step-600` | the checkpoint of this step. It has this name only if it is whole |
| `.writing-600-3f2a…` | a checkpoint that is written. The last part is the token of the round |
| `.deleted-600-3f2a…` | one that is being removed |
| `.owner` | the token of the newest round that has loaded from here. A round with another token does not commit any more |
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

_filesystem: Any = import_module("torch.distributed.checkpoint.filesystem")

# A client of NFS may see a new name so late.
_VISIBLE = 90.0


class Folder:
    """A folder, and the token of this round. Only rank 0 changes names in it."""

    def __init__(self, path: Path, keep: int, token: str) -> None:
        self.path, self._keep, self._token = path, keep, token
        self._is_taken = False

    def of(self, step: int) -> Path:
        """Returns the path of the checkpoint of a step."""
        return self.path / f"step-{step}"

    def draft(self, step: int) -> Path:
        """Returns the path to write to."""
        return self.path / f".writing-{step}-{self._token}"

    def newest(self) -> Optional[Tuple[int, float]]:
        """Returns the newest step that is whole, and its age in seconds.

        Raises `RuntimeError` if the folder cannot be read, or if it has lost what it had.
        """
        try:
            steps = self._steps()
        except OSError as error:
            raise RuntimeError(
                f"failed to read the checkpoints in `{self.path}`: {error}; make the folder once, or mount its file system"
            ) from None
        for step in reversed(steps):
            damage = damage_of(self.of(step))
            if damage is None:
                return step, max(0.0, time.time() - self.of(step).stat().st_mtime)
            warnings.warn(f"step {step} in `{self.path}` is damaged, so an older one is looked for: {damage}", RuntimeWarning)
        before = max(steps, default=None) or os.environ.get("RAGENT_SAVED_STEP")
        if before:
            raise RuntimeError(
                f"failed to load from `{self.path}`: it had a checkpoint of step {before}, and has none that is whole; "
                "mount the right file system, or give another folder to begin anew"
            )
        return None

    def wait_for(self, step: int) -> Path:
        """Waits until this rank sees a checkpoint that rank 0 sees, and returns its path."""
        path, end = self.of(step), time.monotonic() + _VISIBLE
        # A client of NFS remembers that a name does not exist, so the folder is listed first.
        while not (path.name in os.listdir(self.path) and (path / ".metadata").exists()):
            if time.monotonic() > end:
                raise RuntimeError(
                    f"failed to load `{path}`: rank {os.environ.get('RANK', '0')} does not see it, and rank 0 does; "
                    "mount the same folder on all nodes"
                )
            time.sleep(0.5)
        return path

    def take(self) -> None:
        """Makes this round the one that may commit, and removes what others have not finished."""
        try:
            draft = self.path / f".owner-{self._token}"
            draft.write_text(json.dumps({"token": self._token, "host": os.uname().nodename, "pid": os.getpid()}))
            draft.replace(self.path / ".owner")
            self._is_taken = True
            for path in self.path.iterdir():
                if path.name.startswith((".writing-", ".deleted-")) and self._token not in path.name:
                    _remove(path)
        except OSError as error:
            # A full disk is no reason not to start.
            warnings.warn(f"failed to write to `{self.path}`: {error}; training goes on", RuntimeWarning)

    def commit(self, step: int) -> None:
        """Gives the checkpoint its name if all ranks have written their parts, and removes old ones."""
        draft, target = self.draft(step), self.of(step)
        damage = damage_of(draft)
        if damage:
            raise RuntimeError(f"rank 0 does not see all that was written: {damage}; mount the same folder on all nodes")
        if not self._is_taken:
            self.take()
        if json.loads((self.path / ".owner").read_text())["token"] != self._token:
            raise RuntimeError("another job, or a later start of this one, writes to this folder; give each job its own")
        sync([draft / ".metadata", draft])
        if target.exists():
            # It was damaged, so the round has begun from an older one.
            target.rename(self.path / f".deleted-{step}-{self._token}")
        draft.rename(target)
        sync([self.path])
        try:
            # A later step is damaged, and counts only when training is there again.
            for old in [each for each in self._steps() if each <= step][: -self._keep]:
                deleted = self.path / f".deleted-{old}-{self._token}"
                self.of(old).rename(deleted)
                _remove(deleted)
        except OSError as error:
            warnings.warn(f"failed to remove old checkpoints from `{self.path}`: {error}", RuntimeWarning)

    def drop(self, step: int) -> str:
        """Removes a checkpoint that has failed. Returns the free space of the disk, as a text."""
        shutil.rmtree(self.draft(step), ignore_errors=True)
        try:
            return f"{shutil.disk_usage(self.path).free >> 20} MiB are free"
        except OSError as error:
            return f"the free space is unknown: {error}"

    def _steps(self) -> List[int]:
        matches = map(re.compile(r"step-(\d+)").fullmatch, os.listdir(self.path))
        return sorted(int(match[1]) for match in matches if match)


def damage_of(path: Path) -> Optional[str]:
    """Returns what a checkpoint lacks of what its `.metadata` names, or `None`."""
    try:
        ends: Dict[str, int] = {}
        for place in _filesystem.FileSystemReader(path).read_metadata().storage_data.values():
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
        short = (name for name, end in ends.items() if (path / name).stat().st_size < end)
        return next((f"`{name}` is too short" for name in short), None)
    except Exception as error:
        # An unpickler of damaged bytes may raise anything.
        return f"{type(error).__name__}: {error}"


def sync(paths: Iterable[Path]) -> None:
    """Waits until the disk has the files or folders."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    """Removes a folder. It may take long, and a notice may wait for this process."""
    threading.Thread(target=shutil.rmtree, args=(path, True), daemon=True).start()
