"""The command `python -m ragent`: replaces this process by the program."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._errors import LaunchError
from ._program import cannot_start, environment, find


def main() -> NoReturn:
    """Starts the program with the arguments of this process."""
    try:
        program = find()
        try:
            os.execve(program, [program, *sys.argv[1:]], environment())
        except OSError as error:
            raise cannot_start(program, error) from error
    except LaunchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
