"""Starts the program as a child process, and turns its result into an exception."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import AbstractSet, Any, Mapping, Optional, Sequence, Union

from ._arguments import value_of
from ._copies import Copies
from ._errors import CommandLineError, CommandLineExit, LaunchError
from ._program import cannot_start, environment, find
from ._report import Report, parse
from ._signals import Forwarding, named

# Results of a job that has ended because workers failed.
_FAILED = ("budget_spent", "final_failure", "all_quarantined")


def main(args: Optional[Sequence[str]] = None) -> None:
    """Runs a job from a command line, by default that of this process, as `torch.distributed.run.main` does.

    Raises `ChildFailedError` if a worker failed, and `LaunchError` in all other cases in which the job has not succeeded on
    this node. If the command line is invalid, that is also a `ValueError`, and a `SystemExit` with the code 2.
    """
    words = sys.argv[1:] if args is None else args
    try:
        _run(Command(list(words), variables={"RAGENT_MAIN": "1"}))
    except CommandLineError as error:
        raise CommandLineExit(str(error), error.exit_code, error.report) from None


def run(args: Union[Sequence[str], Any]) -> None:
    """Runs a job, as `torch.distributed.run.run` does, and returns when it has succeeded.

    `args` is a command line, or the namespace of torchrun's parser. With a namespace, the program has torchrun's defaults.
    Raises `ChildFailedError` if a worker failed, and `LaunchError` in all other cases in which the job has not succeeded
    on this node; if the command line is invalid, that is also a `ValueError`.
    """
    if hasattr(args, "training_script"):
        from ._namespace import command_of

        command = command_of(args)
    elif isinstance(args, (list, tuple)):
        command = Command(list(args))
    else:
        raise TypeError(
            f"failed to run a job: the arguments are of type `{type(args).__name__}`; pass a list of strings, or the "
            "namespace of torchrun's parser"
        )
    _run(command)


def _run(command: Command) -> None:
    with command.forwarding() as signals:
        command.run(signals)


@dataclass
class Command:
    """A command line of the program."""

    args: Sequence[str]
    """The arguments."""
    by_the_name_of: str = "ragent"
    """The name of the program: as `torchrun` it has torchrun's defaults and no subcommands."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables to set."""
    removed: AbstractSet[str] = frozenset()
    """The names of variables to remove."""
    name: Optional[str] = None
    """The name of the workers in exceptions, by default the script."""

    def forwarding(self) -> Forwarding:
        """Returns the signals to pass on while the command runs."""
        variable = "TORCHELASTIC_SIGNALS_TO_HANDLE"
        default = None if variable in self.removed else os.environ.get(variable)
        ending = self._setting("--signals-to-handle") or default
        return Forwarding(named(ending or ""), named(self._setting("--signals-to-forward") or ""))

    def run(self, signals: Forwarding) -> None:
        """Runs the program until it ends.

        Raises `ChildFailedError` or `LaunchError` unless it exits with 0.
        """
        program = find()
        if self._subcommands():
            # The agents of all hosts would write the file, each on its own host.
            code, report = self._wait(program, self.args, signals), None
        else:
            given = self._setting("--report")
            with _ReportFile(given) as file:
                flags = [] if given else [f"--report={file.path}"]
                code = self._wait(program, [*flags, *self.args], signals)
                report = file.read()
        if code == 0 and report is not None:
            # If the caller ignores SIGCHLD, the code is lost and counts as 0.
            code = report.exit_code
        if code:
            raise _error(code, report, self.name)

    def _setting(self, flag: str) -> Optional[str]:
        variable = "PET_" + flag.strip("-").replace("-", "_").upper()
        default = None if variable in self.removed else os.environ.get(variable)
        return value_of(self.args[self._subcommands() :], flag) or default

    def _subcommands(self) -> int:
        """Returns the number of words before the flags of a job."""
        return int(self.by_the_name_of == "ragent" and list(self.args[:1]) == ["launch"])

    def _wait(self, program: str, arguments: Sequence[str], signals: Forwarding) -> int:
        variables = {name: value for name, value in environment().items() if name not in self.removed}
        variables.update(self.variables)
        # If this process is killed, the program leaves the job.
        variables["RAGENT_EXIT_WITH_PARENT"] = str(os.getpid())
        copies = Copies()
        try:
            process = subprocess.Popen(
                [self.by_the_name_of, *arguments],
                executable=program,
                env=variables,
                stdout=copies.stdout,
                stderr=copies.stderr,
                # In a session of its own, the program does not receive Ctrl-C a second time from the terminal. If no
                # signal is passed on, it must receive Ctrl-C from there.
                start_new_session=signals.is_installed,
            )
        except OSError as error:
            raise cannot_start(program, error) from error
        try:
            copies.begin(process)
            signals.attach(process)
            code = _end_of(process, signals)
            copies.finish()
            return code
        except BaseException:
            _stop(process, signals)
            raise


def _end_of(process: subprocess.Popen[bytes], signals: Forwarding) -> int:
    """Waits for the end of the program, and returns its exit code."""
    if not signals.is_installed:
        return process.wait()
    # A signal that arrives just before the main thread blocks does not interrupt it. Its handler is called only when
    # the thread continues. So another thread waits, and the main one continues once a second.
    end = threading.Event()

    def wait() -> None:
        process.wait()
        end.set()

    threading.Thread(target=wait, name="ragent-wait", daemon=True).start()
    while not end.wait(1):
        pass
    return process.wait()


def _stop(process: subprocess.Popen[bytes], signals: Forwarding) -> None:
    """Ends the program and waits for it. After a second exception it is killed, and its processes with it."""
    process.terminate()
    try:
        _end_of(process, signals)
    except BaseException:
        process.kill()
        process.wait()
        raise


class _ReportFile:
    """The file of the report: the given one, or a temporary one that is removed."""

    def __init__(self, given: Optional[str]) -> None:
        self._given = given
        self.path = ""
        self._before: object = None

    def __enter__(self) -> _ReportFile:
        if self._given:
            self.path = self._given
            self._before = self._state()
        else:
            import tempfile

            descriptor, self.path = tempfile.mkstemp(".json", "ragent-")
            os.close(descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._given:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass

    def read(self) -> Optional[Report]:
        """Returns the report, if the program has written one."""
        state = self._state()
        if state is None or state == self._before:
            return None
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return parse(file.read())

    def _state(self) -> object:
        """Returns a value that differs after each change of a regular file. `None` for others, such as pipes."""
        if not os.path.isfile(self.path):
            return None
        status = os.stat(self.path)
        return status.st_ino, status.st_size, status.st_mtime_ns


def _error(code: int, report: Optional[Report], name: Optional[str]) -> Exception:
    if report is not None and report.first_failure is not None and report.result in _FAILED:
        from ._failures import of_report

        return of_report(report, report.first_failure, name)
    if report is not None and report.text:
        text = report.text
    elif code == 2:
        text = (
            "failed to start the job: ragent refuses the command line or an environment variable (exit code 2); its message "
            "on stderr has the reason"
        )
    elif code < 0:
        text = f"the job was left: ragent was killed by signal {-code}; start it again, and the node rejoins the job"
    else:
        text = f"the job was not completed: ragent exited with code {code}; its messages on stderr have the reason"
    return (CommandLineError if code == 2 else LaunchError)(text, code, report)
