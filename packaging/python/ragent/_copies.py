"""Copies the output of the program, if `sys.stdout` or `sys.stderr` is not the stream of the process."""

from __future__ import annotations

import codecs
import io
import os
import subprocess
import sys
import threading
from typing import IO, Any, Optional


class Copies:
    """Where the program writes: to the streams of this process, or to what has replaced them.

    A stream of Python that has no file, such as that of a notebook or of `contextlib.redirect_stdout`, receives the text
    from a thread.
    """

    def __init__(self) -> None:
        self.stdout, self._out = _destination(sys.stdout, sys.__stdout__)
        self.stderr, self._err = _destination(sys.stderr, sys.__stderr__)
        self._threads: list[threading.Thread] = []

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Copies what the process writes."""
        for pipe, stream in ((process.stdout, self._out), (process.stderr, self._err)):
            if pipe is not None:
                thread = threading.Thread(target=_copy, args=(pipe, stream), name="ragent-copy", daemon=True)
                thread.start()
                self._threads.append(thread)

    def finish(self) -> None:
        """Waits until everything is copied. The process has ended, and no process that it has started is left."""
        for thread in self._threads:
            thread.join()


def _destination(stream: Any, own: Any) -> tuple[Optional[int], Any]:
    """Returns the value for `Popen`, and the stream to copy to."""
    if stream is None or stream is own:
        return None, None
    # Other classes may have a descriptor that is not where they write.
    if type(stream) is io.TextIOWrapper:
        try:
            number = stream.fileno()
            stream.flush()
            return number, None
        except (OSError, ValueError):
            pass
    return subprocess.PIPE, stream


def _copy(pipe: IO[bytes], stream: Any) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with pipe:
        while True:
            part = os.read(pipe.fileno(), 1 << 16)
            text = decoder.decode(part, final=not part)
            try:
                if text:
                    stream.write(text)
                    stream.flush()
            except Exception:
                # A closed stream: the program must not wait for a reader.
                pass
            if not part:
                return
