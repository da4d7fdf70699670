"""`ragent.status`: the state of real jobs, and of other versions of the program."""

import dataclasses
import json
import os

import pytest
from support import free_port, wait_until

import ragent
from ragent._records import read

WORKER = """
    import os, sys
    import ragent
    ragent.step(3, total=10)
    print("worker", flush=True)
    fifo = os.open("fifo", os.O_RDONLY)
    os.read(fifo, 1)
"""


@pytest.fixture
def call(sandbox):
    """Calls `status` in a process of its own, and returns what it prints."""

    def call(expression):
        return sandbox.run(f"import ragent, dataclasses\nprint({expression})").succeeds().stdout.strip()

    return call


def test_running_job(sandbox, call):
    """The state of a running job has its nodes and the reported step. By default it is the job of this user."""
    endpoint = f"127.0.0.1:{free_port()}"
    os.mkfifo(sandbox.work / "fifo")
    script = sandbox.write("worker.py", WORKER)
    job = sandbox.start("-m", "ragent", "--nnodes=1:1", f"--rdzv-endpoint={endpoint}", "--rdzv-id=run7", script)
    job.prints("worker")
    wait_until(lambda: call("ragent.status().progress is not None") == "True", lambda: "no step is known")
    values = "s.run_id, s.round, s.phase, s.world_size, s.nodes[0].state, s.progress.step, s.progress.steps_left"
    expected = str(("run7", 1, "running", 1, "running", 3, 7))
    for argument in ("", repr(endpoint)):
        assert call(f"[({values}) for s in [ragent.status({argument})]][0]") == expected
    sandbox.start("-m", "ragent", "stacks", f"--rdzv-endpoint={endpoint}").succeeds()
    # All fields of the program are known, and have their values.
    check = sandbox.run(
        f"""
        import dataclasses, ragent
        def check(value, raw):
            for field in dataclasses.fields(value):
                if field.name != "raw":
                    mine, its = getattr(value, field.name), raw[field.name]
                    if dataclasses.is_dataclass(mine):
                        check(mine, its)
                    elif isinstance(mine, tuple):
                        assert len(mine) == len(its)
                        for pair in zip(mine, its):
                            check(*pair) if dataclasses.is_dataclass(pair[0]) else None
                    else:
                        assert mine == its, field.name
            assert set(raw) <= {{field.name for field in dataclasses.fields(value)}}, raw
        state = ragent.status({endpoint!r})
        check(state, state.raw)
        times = {{each.state: each.ms for each in state.time.states}}
        assert state.time.of("productive") == times["productive"] > 0
        assert state.look.places[0].count == 1
        """
    )
    check.succeeds()
    with open(sandbox.work / "fifo", "w") as fifo:
        fifo.write("x")
    job.succeeds()


def test_no_job(call):
    """If no process answers, the error has the message and the exit code of the program."""
    code = f"""
import ragent
try:
    ragent.status("127.0.0.1:{free_port()}")
except ragent.StatusError as error:
    print(error.exit_code, error)
"""
    text = call(f"exec({code!r})")
    assert text.startswith("1 failed to get the status of the job at 127.0.0.1:") and "hint: " in text


def test_hint_without_an_endpoint(call):
    """The hint shows the call in Python, and not the flag of the program."""
    code = "import ragent\ntry:\n    ragent.status()\nexcept ragent.StatusError as error:\n    print(error)"
    text = call(f"exec({code!r})")
    assert 'hint: ' in text and '`ragent.status("HOST:PORT")`' in text, text


def test_list_of_voters(call):
    """A list of voters is passed on: all of them are asked."""
    ports = [free_port() for _ in range(3)]
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    text = call(f"exec({_attempt(endpoints)!r})")
    assert text.startswith("1 ") and "127.0.0.1" in text
    assert call(f"exec({_attempt('a,b')!r})").startswith("2 ")


def _attempt(endpoint):
    return f"""
import ragent
try:
    ragent.status({endpoint!r})
except ragent.StatusError as error:
    print(error.exit_code, error)
"""


def test_program_that_does_not_answer(sandbox):
    """After the timeout, the program is ended, and the error states it."""
    sandbox.program.unlink()
    sandbox.program.write_text("#!/bin/sh\nexec sleep 1000\n")
    sandbox.program.chmod(0o755)
    run = sandbox.run("import ragent\nragent.status('node0', timeout=0.2)")
    assert "StatusError: failed to get the status of the job at node0\n  caused by: no answer within 0.2 s" in run.stderr


def test_missing_program(sandbox, bare_python):
    """Without a program, the error is a StatusError too."""
    sandbox.program.unlink()
    run = sandbox.run("import ragent\nragent.status()", python=bare_python)
    assert "StatusError: failed to find the program `ragent`" in run.stderr


def test_other_output(sandbox):
    """Output that is not JSON is an error."""
    sandbox.program.unlink()
    sandbox.program.write_text("#!/bin/sh\necho nothing\n")
    sandbox.program.chmod(0o755)
    run = sandbox.run("import ragent\nragent.status()")
    assert "StatusError: failed to read the status of the job" in run.stderr


def test_other_versions():
    """Absent fields are None or empty, and fields of newer versions are ignored but for `raw`."""
    older = read(ragent.Status, {"run_id": "a", "nodes": [{"host_name": "b"}]})
    assert older.run_id == "a" and older.nodes == (ragent.Node(host_name="b"),)
    assert older.round is None and older.voters == () and older.time is None
    newer = read(ragent.Status, {"shiny": 1, "time": {"states": [], "more": 2}, "outcome": None})
    assert newer.raw["shiny"] == 1 and newer.time == ragent.Time()
    with pytest.raises(dataclasses.FrozenInstanceError):
        newer.round = 1


def test_outcomes():
    """The result of a job and the end of a worker are words, with and without further values."""
    text = """{"outcome": {"result": {"join_timeout": {"present": 1}}, "other_failures": 2,
        "first_failure": {"host_name": "vm", "end": {"exited": 3}, "pid": 7,
            "hardware": [{"text": "GPU 3 reported XID 79", "age": null}]},
        "further_failures": [{"end": "keeper_lost"}], "restarts_used": 1}}"""
    outcome = read(ragent.Status, json.loads(text)).outcome
    assert (outcome.result, outcome.first_failure.end, outcome.further_failures[0].end) == (
        "join_timeout",
        "exited",
        "keeper_lost",
    )
    assert outcome.first_failure.raw["end"] == {"exited": 3}
    assert [fact.text for fact in outcome.first_failure.hardware] == ["GPU 3 reported XID 79"]
