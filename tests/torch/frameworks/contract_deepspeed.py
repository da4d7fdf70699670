"""Prints the arguments and variables that this worker got from DeepSpeed's launcher, or from ours."""

import json
import os
import sys

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR")
told = {name: os.environ.get(name) for name in NAMES}
assert int(os.environ["MASTER_PORT"]) > 0
os.write(1, f"told {json.dumps([sys.argv[1:], told])}\n".encode())
