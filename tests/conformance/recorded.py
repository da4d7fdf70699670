"""A worker whose exception is recorded with torch's `record`, as its documentation recommends."""

import os

import worker  # noqa: F401
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == os.environ.get("FAILS", "0"):
        raise ValueError("no such batch")


if __name__ == "__main__":
    main()
