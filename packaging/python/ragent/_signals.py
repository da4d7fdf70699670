"""Handles signals to this process while it waits for its child process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from types import TracebackType
from typing import Any, Iterable, Optional, Type

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Forwarding:
    """Passes signals on to a child process, as a context manager that restores the handlers.

    At the end, each received signal that ends a job is raised again, for the former handler: SIGINT becomes
    `KeyboardInterrupt`. In other threads than the main one, which cannot handle signals, nothing is changed.
    """

    def __init__(self, ending: Iterable[signal.Signals] = (), others: Iterable[signal.Signals] = ()) -> None:
        self._ending = {*_ENDING, *ending}
        self._others = set(others) - self._ending
        self._former: dict[signal.Signals, Any] = {}
        self._received: list[signal.Signals] = []
        # Signals that were received before there is a process.
        self._pending: list[signal.Signals] = []
        self._process: Optional[subprocess.Popen[bytes]] = None

    def __enter__(self) -> Forwarding:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in (*self._ending, *self._others):
                self._install(number)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._restore()
        for number in dict.fromkeys(self._received):
            if number in self._ending:
                signal.raise_signal(number)

    @property
    def is_installed(self) -> bool:
        """True if signals are passed on."""
        return bool(self._former)

    def attach(self, process: subprocess.Popen[bytes]) -> None:
        """Passes signals on to this process, also those that were received before it was started."""
        self._process = process
        while self._pending:
            self._send(self._pending.pop(0))

    def _install(self, number: signal.Signals) -> None:
        former = signal.getsignal(number)
        # The child process inherits that a signal is ignored. A handler that is not Python's cannot be restored.
        if former is None or former == signal.SIG_IGN:
            return
        try:
            signal.signal(number, self._receive)
        except (OSError, ValueError):
            return
        self._former[number] = former

    def _restore(self) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        self._former.clear()

    def _receive(self, number: int, _frame: object) -> None:
        received = signal.Signals(number)
        self._received.append(received)
        if self._process is None:
            self._pending.append(received)
        else:
            self._send(received)

    def _send(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                pass


def named(text: str) -> list[signal.Signals]:
    """Returns the signals in a list of names that can be handled. The program reports wrong names."""
    names = (name.strip() for name in text.split(","))
    signals = [signal.Signals[name] for name in names if name in signal.Signals.__members__]
    return [number for number in signals if number not in (signal.SIGKILL, signal.SIGSTOP)]
