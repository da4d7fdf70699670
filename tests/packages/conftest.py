"""The packages in target/packages, which `make test-packages` builds."""

import os
import pathlib
import platform
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ROOT / "target/packages"
# Those of the environment that runs the tests.
TOOLS = pathlib.Path(sys.executable).parent
TORCH_PYTHON = ROOT / ".venv/bin/python"
# Only a test that fails waits for this long, in seconds.
PATIENCE = 300


def package(pattern):
    """Returns the only package with this name."""
    found = sorted(PACKAGES.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}; build the packages with `make test-packages`"
    return found[0]


def skip(reason):
    """Skips the test, except under CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def needs(*programs):
    for program in programs:
        if shutil.which(program) is None:
            skip(f"{program} is not installed")


def run(*words, code=0, **options):
    """Runs a program, and returns its output. Fails unless it exits with `code`."""
    options = {"stdin": subprocess.DEVNULL, "timeout": PATIENCE, **options}
    end = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    assert code is None or end.returncode == code, f"{words}: {end.returncode}\n{end.stdout}\n{end.stderr}"
    return end


@pytest.fixture(scope="session")
def wheel():
    return package(f"ragent_launch-*_{platform.machine()}.whl")


@pytest.fixture
def venv(tmp_path):
    """An environment without packages, and its Python."""
    folder = tmp_path / "venv"
    run(sys.executable, "-m", "venv", folder)
    return folder


@pytest.fixture
def env(tmp_path):
    """The environment of programs, without settings of the user. No environment is active."""
    (tmp_path / "run").mkdir()
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
