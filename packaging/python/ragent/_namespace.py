"""Converts torchrun's parsed arguments to a command line."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from ._launch import Command


def command_of(namespace: Any) -> Command:
    """Returns the command line for a namespace of torchrun's parser.

    Values that equal those of an empty command line are left out: the program has the same defaults, and reads the same
    `PET_*` variables.
    """
    parser: argparse.ArgumentParser = import_module("torch.distributed.run").get_args_parser()
    defaults = parser.parse_args(["script"])
    flags: list[str] = []
    words: list[str] = []
    variables: dict[str, str] = {}
    for action in parser._actions:
        value = getattr(namespace, action.dest, None)
        if value is None:
            continue
        if not action.option_strings:
            words += map(str, value) if isinstance(value, (list, tuple)) else [str(value)]
        elif _text(value) != _text(getattr(defaults, action.dest, None)):
            flag = max(action.option_strings, key=len)
            if action.nargs != 0:
                flags.append(f"{flag}={_text(value)}")
            elif value:
                flags.append(flag)
            else:
                # No flag switches it off if its variable switches it on.
                variables[f"PET_{action.dest.upper()}"] = "0"
    # `torch.distributed.launch` without `--use-env`.
    if getattr(namespace, "use_env", True) is False:
        words.insert(1, "--local-rank=${local_rank}")
    return Command([*flags, *words], "torchrun", variables)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(str(each).replace(",", ",,") for each in value)
    return str(value)
