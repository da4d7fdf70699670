"""The program is found and started, or the error states the reason."""

import os
import shutil
import sys

import pytest
from support import PROGRAM

WORKER = """
    import os, sys
    print("worker", sys.executable, "RAGENT_PYTHON" in os.environ, flush=True)
    sys.stdin.read()
"""


def test_module_is_replaced_by_the_program(sandbox):
    """`python -m ragent` becomes the program, whose workers run with that interpreter."""
    script = sandbox.write("worker.py", WORKER)
    reader, writer = os.pipe()
    run = sandbox.start("-m", "ragent", script, "--version", stdin=reader)
    os.close(reader)
    line = run.prints("worker")
    assert line.split() == ["worker", sys.executable, "False"]
    command = open(f"/proc/{run.pid}/cmdline").read().split("\0")
    assert command[0] == str(sandbox.program)
    assert os.readlink(f"/proc/{run.pid}/exe") == os.path.realpath(PROGRAM)
    os.close(writer)
    run.succeeds()


def test_exit_codes_are_the_programs(sandbox):
    """`python -m ragent` ends as the program does."""
    assert sandbox.run("-m", "ragent", "--nope", "x").code == 2
    run = sandbox.run("-m", "ragent", "--version").succeeds()
    assert run.stdout.startswith("ragent ")


@pytest.mark.parametrize("place", ["scripts", "prefix", "user", "path"])
def test_places(sandbox, bare_python, place):
    """The program is found in each folder in which an installation puts it, and in PATH."""
    sandbox.program.unlink()
    if place == "scripts":
        target = bare_python.parent
    elif place == "prefix":
        # The package moves into the layout of `pip install --prefix`.
        packages = sandbox.path / "prefix/lib/python3/site-packages"
        packages.mkdir(parents=True)
        shutil.move(str(sandbox.site / "ragent"), str(packages))
        sandbox.environment["PYTHONPATH"] = str(packages)
        target = sandbox.path / "prefix/bin"
    elif place == "user":
        target = sandbox.path / "home/.local/bin"
    else:
        target = sandbox.path / "empty"
    target.mkdir(parents=True, exist_ok=True)
    (target / "ragent").symlink_to(PROGRAM)
    sandbox.run("-m", "ragent", "--version", python=bare_python).succeeds()
    code = "import ragent._program\nprint(ragent._program.find())"
    found = sandbox.run(code, python=bare_python).succeeds().stdout.strip()
    assert found == str(target / "ragent")


def test_missing_program(sandbox, bare_python):
    """Without a program, the error names the folders that were searched. The exit code is 1."""
    sandbox.program.unlink()
    run = sandbox.run("-m", "ragent", "x.py", python=bare_python)
    assert run.code == 1
    assert "error: failed to find the program `ragent`" in run.stderr
    for text in (str(sandbox.site / "bin"), str(bare_python.parent), "not in PATH", "hint: install", "ragent_launch-*.whl"):
        assert text in run.stderr
    # Another project has that name in the public index.
    assert "pip install ragent" not in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    "content, mode, cause, hint",
    [
        (b"\x7fELF of another machine", 0o755, "Exec format error", "architecture"),
        (b"#!/bin/sh\n", 0o644, "Permission denied", "chmod +x"),
        (b"#!/no/such/interpreter\n", 0o755, "No such file or directory", "again"),
    ],
)
def test_program_that_cannot_be_executed(sandbox, content, mode, cause, hint):
    """A program for another machine, or without permission, is an error with its cause and a hint."""
    sandbox.program.unlink()
    sandbox.program.write_bytes(content)
    sandbox.program.chmod(mode)
    run = sandbox.run("-m", "ragent", "x.py")
    assert run.code == 1
    assert run.stderr.startswith(f"error: failed to start {sandbox.program}\n")
    assert cause in run.stderr and "hint: " in run.stderr and hint in run.stderr
    assert "Traceback" not in run.stderr
    run = sandbox.run(
        """
        import ragent
        try:
            ragent.run(["x.py"])
        except ragent.LaunchError as error:
            print(error.exit_code, error)
        """
    ).succeeds()
    assert run.stdout.startswith("1 failed to start") and cause in run.stdout


def test_import_is_cheap(sandbox):
    """Importing the module imports no other one, and a step without an agent imports little."""
    run = sandbox.run(
        """
        import importlib, operator, sys, warnings
        before = set(sys.modules)
        import ragent
        print(sorted(set(sys.modules) - before))
        ragent.step(1)
        print(sorted(set(sys.modules) - before))
        """
    ).succeeds()
    assert run.stdout.splitlines() == ["['ragent']", "['__future__', 'ragent', 'ragent._steps']"]


def test_names(sandbox):
    """All public names exist, are listed, and an unknown one is an error."""
    sandbox.run(
        """
        import ragent
        namespace = {}
        exec("from ragent import *", namespace)
        for name in ragent.__all__:
            assert namespace[name] is getattr(ragent, name), name
            assert name in dir(ragent)
        assert isinstance(ragent.__version__, str)
        try:
            ragent.nope
        except AttributeError as error:
            assert "nope" in str(error)
        else:
            raise SystemExit("no error")
        """
    ).succeeds()
