"""The drill that users start on their own machines, with one node."""

import os
import re

import pytest

from support import REPOSITORY, free_port

DRILL = REPOSITORY / "examples/drill/drill.py"


def drill(sandbox, folder, path):
    """Runs the drill with one worker."""
    words = ["--folder", folder, "--nodes", 1, "--endpoint", f"127.0.0.1:{free_port()}", "--", "--nproc-per-node", 1]
    return sandbox.run(DRILL, *words, env={"PATH": path, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"})


@pytest.mark.long
def test_one_node(sandbox, needs_torch):
    """All promises are kept, and each event has a time. What needs more nodes is named."""
    folder = sandbox.work / "drill"
    folder.mkdir()
    run = drill(sandbox, folder, f"{sandbox.program.parent}:{os.environ['PATH']}").succeeds()
    rows = re.findall(r"^(.+?)  +(\d+\.\d) s +(\d+)$", run.stdout, re.MULTILINE)
    assert [what for what, *_ in rows] == ["a worker is killed", "an agent is killed, and started again", "a rank is stopped for 20 s"], run.stdout
    assert float(rows[-1][1]) >= 20, run.stdout
    assert re.findall("^not tried: (.+?):", run.stdout, re.MULTILINE) == [
        "the leader's agent is killed", "`ragent explain stall`", "a node leaves and returns"], run.stdout
    assert "\nbroken promise: none\n" in run.stdout


@pytest.mark.parametrize("is_program_missing", [False, True])
def test_wrong_input(sandbox, is_program_missing):
    """The error has the cause, and what to do."""
    path = "" if is_program_missing else str(sandbox.program.parent)
    run = drill(sandbox, sandbox.work / "none", path)
    assert run.code == 2, run.stderr
    assert ("install it" if is_program_missing else "make the folder") in run.stderr
