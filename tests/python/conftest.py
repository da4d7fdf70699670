"""Fixtures of the tests of the Python package, which run the program that `RAGENT_PROGRAM` names.

The default is the debug build of this repository. Each test has the package and a link to the program in a folder of its
own, in the layout of `pip install --target`, so that the package finds the program as an installed one does.
"""

import pathlib
import signal
import subprocess
import sys
import tempfile
import uuid

import pytest
from support import PACKAGE, PROGRAM, Sandbox, needs

# The package itself, for tests of functions that start no program.
sys.dont_write_bytecode = True
sys.path.insert(0, str(PACKAGE.parent))


def pytest_configure(config):
    # A shell without job control starts background processes, such as a test run, with some of these ignored.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if not PROGRAM.exists():
        raise pytest.UsageError(f"failed to find {PROGRAM}: build it with `cargo build`, or set RAGENT_PROGRAM")


@pytest.fixture
def sandbox():
    with tempfile.TemporaryDirectory(prefix="pytest-ragent-") as folder:
        sandbox = Sandbox(pathlib.Path(folder), uuid.uuid4().hex)
        try:
            yield sandbox
        finally:
            sandbox.close()


@pytest.fixture
def bare_python(sandbox):
    """An interpreter in an environment of its own, whose scripts folder has no program."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", sandbox.path / "venv"], check=True)
    # The folders of PATH must not have one either.
    sandbox.environment["PATH"] = str(sandbox.path / "empty")
    return sandbox.path / "venv/bin/python"


@pytest.fixture
def needs_torch():
    needs("torch")
