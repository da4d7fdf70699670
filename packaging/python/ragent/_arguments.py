"""Finds flags in a command line of the program."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence, Tuple

# All other flags have a value.
_SWITCHES = "--standalone --standby --observe --module --no-python --run-path --virtual-local-rank --dry-run --help --version".split()

_SHORT = ("-r", "-t", "-x")


def value_of(args: Sequence[str], flag: str) -> Optional[str]:
    """Returns the last value of a flag before the script, which may be abbreviated. `None` if it is not given.

    `flag` is its name with dashes.
    """
    found = None
    for name, value in _flags(args):
        if len(name) > len("--r") and flag.startswith(name):
            found = value
    return found


def _flags(args: Sequence[str]) -> Iterator[Tuple[str, str]]:
    words = iter(args)
    for word in words:
        if word == "--" or not word.startswith("-") or word == "-":
            return
        name, has_value, value = word.partition("=")
        name = name.replace("_", "-")
        if has_value:
            yield name, value
        elif name.startswith("--"):
            if not any(switch.startswith(name) for switch in _SWITCHES):
                yield name, next(words, "")
        elif name in _SHORT:
            next(words, None)
