"""Finds the program `ragent` that belongs to this module."""

from __future__ import annotations

import errno
import os
import platform
import sys
from typing import Iterator

from ._errors import LaunchError

_NAME = "ragent"


def find() -> str:
    """Returns the path of the program.

    Raises `LaunchError` if it does not exist.
    """
    searched = []
    for folder in _folders():
        path = os.path.join(folder, _NAME)
        if os.path.isfile(path):
            return path
        searched.append(folder)
    from shutil import which

    path = which(_NAME) or ""
    if path:
        return os.path.abspath(path)
    folders = ", ".join(dict.fromkeys(searched))
    raise LaunchError(
        f"failed to find the program `{_NAME}`\n"
        f"  caused by: it is not in {folders}, and not in PATH\n"
        f"hint: install the wheel from its file, `{sys.executable or 'python3'} -m pip install ./ragent_launch-*.whl` "
        "(`ragent` in the public index is another project), or put the program into a folder of PATH",
        exit_code=1,
    )


def environment() -> dict[str, str]:
    """Returns the environment of the program: the variables of this process, and the interpreter for its workers."""
    values = dict(os.environ)
    if sys.executable:
        values["RAGENT_PYTHON"] = sys.executable
    return values


def cannot_start(program: str, error: OSError) -> LaunchError:
    """Returns the error of a program that exists and cannot be executed."""
    hints = {
        errno.ENOEXEC: f"it is not a program for {platform.machine()}, the architecture of this machine: install the wheel "
        "for this architecture",
        errno.EACCES: "make it executable with `chmod +x`, on a file system that is not mounted with `noexec`",
    }
    # The kernel also returns ENOENT if the dynamic linker of the program is missing.
    default = "install the wheel `ragent_launch-*.whl` for this machine again"
    return LaunchError(
        f"failed to start {program}\n"
        f"  caused by: {error.strerror or error}\n"
        f"hint: {hints.get(error.errno or 0, default)}",
        exit_code=1,
    )


def _folders() -> Iterator[str]:
    # The folders that need no further import come first; in each installation at most one of them has the program.
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # `pip install --target`.
    yield os.path.join(packages, "bin")
    # `PREFIX/lib/pythonX.Y/site-packages`.
    yield os.path.normpath(os.path.join(packages, *[os.pardir] * 3, "bin"))
    import sysconfig

    yield sysconfig.get_path("scripts")
    yield sysconfig.get_path("scripts", "posix_user")
    if sys.executable:
        yield os.path.dirname(sys.executable)
