"""A worker that trains as `examples/digits/train.py` does, with the same arguments.

It appends a line for each step and each checkpoint to the file `steps` in its working folder: the time, the number of
workers, the step, and 1 for a checkpoint. A line is written when the step has been made, or the checkpoint is on storage.
"""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "digits"), str(ROOT / "packaging" / "python")]
import train
from ragent import _checkpoints

# Its lines are written one at a time, so those of several workers are not mixed.
STEPS = open("steps", "a", buffering=1)


def recorded(report, is_saved):
    """Returns the function `report`, which then also writes a line."""
    def report_and_write(step, *others, **options):
        print(time.monotonic_ns(), os.environ["WORLD_SIZE"], step, is_saved, file=STEPS)
        report(step, *others, **options)
    return report_and_write


if __name__ == "__main__":
    train.report_step = recorded(train.report_step, 0)
    _checkpoints.saved = recorded(_checkpoints.saved, 1)
    train.main()
