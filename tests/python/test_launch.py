"""`ragent.run` and `ragent.main`: results as exceptions, reports, and signals."""

import json
import os
import pty
import signal
import stat
import subprocess
import sys

import pytest
from support import free_port, wait_until

# A worker that needs half a second to save its work after a signal.
POLITE = """
    import os, signal, time
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    print("worker", os.getpid(), flush=True)
    print("saving after", signal.Signals(signal.sigwait(signals)).name, flush=True)
    time.sleep(0.5)
    print("saved", flush=True)
"""

FAILING = """
    import os, sys
    if os.environ["RANK"] == "1":
        sys.exit(7)
    sys.stdin.read()
"""


def test_success(sandbox):
    """A job that succeeds returns None and imports no torch."""
    # One call writes the line: `print` would write its parts, between which those of the other worker may come.
    script = sandbox.write("worker.py", "import os; os.write(1, f'rank {os.environ[\"RANK\"]}\\n'.encode())")
    run = sandbox.run(
        f"""
        import sys
        import ragent
        assert ragent.run(["--nproc-per-node", "2", {script!r}]) is None
        assert "torch" not in sys.modules
        """
    ).succeeds()
    assert sorted(run.stdout.split()) == ["0", "1", "rank", "rank"]


def test_failed_worker(sandbox):
    """A failed worker is a ChildFailedError with torch's attributes, the report, and its text. It can be copied."""
    script = sandbox.write("worker.py", FAILING)
    run = sandbox.run(
        f"""
        import copy, pickle, sys
        import ragent
        try:
            ragent.run(["--nproc-per-node", "2", {script!r}])
        except ragent.ChildFailedError as error:
            first = error
        for error in (first, copy.copy(first), pickle.loads(pickle.dumps(first))):
            rank, failure = error.get_first_failure()
            assert type(error) is ragent.ChildFailedError and not isinstance(error, RuntimeError)
            assert rank == 1 and error.failures == {{1: failure}}
            assert (failure.local_rank, failure.exitcode, failure.error_file) == (1, 7, "<N/A>")
            assert failure.signal_name() == "<N/A>" and failure.pid > 0 and "code 7" in failure.message
            assert failure.timestamp == error.report.ended_at // 1000 and failure.timestamp_isoformat()
            assert str(error) == error.report.text and "rank      : 1 (local_rank: 1)" in str(error)
            assert error.name == {script!r}
            report = error.report
            assert (report.result, report.exit_code, report.restarts_used) == ("budget_spent", 1, 0)
            assert report.first_failure.exit_code == 7 and report.raw["first_failure"]["exit_code"] == 7
        assert "torch" not in sys.modules
        """
    )
    run.succeeds()


def test_killed_worker(sandbox):
    """The exit code of a killed worker is its negative signal, as with torch."""
    script = sandbox.write("worker.py", "import os; os.kill(os.getpid(), 9)")
    sandbox.run(
        f"""
        import ragent
        try:
            ragent.run([{script!r}])
        except ragent.ChildFailedError as error:
            failure = error.failures[0]
            assert failure.exitcode == -9 and failure.signal_name() == "SIGKILL"
        else:
            raise SystemExit("no error")
        """
    ).succeeds()


def test_main(sandbox):
    """`main` takes the command line of the process, and exits with 2 if it is invalid."""
    script = sandbox.write("worker.py", "import sys; print(sys.argv[1:], flush=True)")
    code = "import ragent\nragent.main()"
    assert sandbox.run(code, script, "--report", "x").succeeds().stdout == "['--report', 'x']\n"
    run = sandbox.run(code, "--nope", script)
    assert run.code == 2 and "Traceback" not in run.stderr and "--nope" in run.stderr
    run = sandbox.run(code, "--rdzv-conf", "x=1", script)
    assert run.code == 2 and "Traceback" not in run.stderr


def test_wrong_types(sandbox):
    """`run` refuses a string, which would be read as single characters."""
    run = sandbox.run("import ragent\nragent.run('train.py')")
    assert "TypeError: failed to run a job: the arguments are of type `str`" in run.stderr


def test_nodes_that_are_missing(sandbox):
    """A job for which too few nodes register is a LaunchError with the report."""
    run = sandbox.run(
        f"""
        import copy, pickle
        import ragent
        args = ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:{free_port()}", "--rdzv-id", "j", "--rdzv-conf", "join_timeout=1"]
        try:
            ragent.run(["--no-python", *args, "true"])
        except ragent.LaunchError as error:
            for each in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
                print(each.exit_code, each.report.result, bool(str(each) == each.report.text))
        """
    ).succeeds()
    assert run.stdout == "1 join_timeout True\n" * 3


def test_agent_that_is_killed(sandbox):
    """An agent that is killed is a LaunchError with the signal as exit code."""
    script = sandbox.write("worker.py", "import sys; print('up', flush=True); sys.stdin.read()")
    run = sandbox.start(
        f"""
        import ragent
        try:
            ragent.run([{script!r}])
        except ragent.LaunchError as error:
            print(error.exit_code, error.report, error)
        """,
        stdin=None,
    )
    run.prints("up")
    agents = []

    def is_found():
        # On a busy machine, the agent was once missing in the list.
        agents[:] = [pid for pid in sandbox.processes() if _parent(pid) == run.pid]
        return len(agents) == 1

    wait_until(is_found, lambda: f"one agent runs: {agents}, {sandbox.processes()}")
    os.kill(agents[0], signal.SIGKILL)
    assert run.succeeds().stdout.startswith("up\n-9 None the job was left: ragent was killed by signal 9")


@pytest.mark.parametrize("given", ["variable", "flag", "abbreviation"])
def test_report_of_the_caller(sandbox, given):
    """A report file that the caller names is read, and kept."""
    file = sandbox.path / "report.json"
    flags = {"variable": [], "flag": ["--role", "a", "--report", str(file)], "abbreviation": [f"--rep={file}"]}[given]
    code = f"""
    import ragent
    try:
        ragent.run([*{flags!r}, "--no-python", "false", "--report", "another"])
    except ragent.ChildFailedError as error:
        print(error.report.text == str(error))
    """
    env = {"PET_REPORT": str(file)} if given == "variable" else {}
    assert sandbox.run(code, env=env).succeeds().stdout == "True\n"
    assert json.loads(file.read_text())["result"] == "budget_spent"


def test_older_report(sandbox):
    """The file of an earlier job is not the report of one that was refused, which has the reason."""
    file = sandbox.path / "report.json"
    code = f"""
    import ragent
    for flags in ([], ["--rdzv-conf=x=1"], ["--nproc-per-node", "x"], ["--no-such-flag"]):
        try:
            ragent.run(["--report", {str(file)!r}, *flags, "--no-python", "false"])
        except (ragent.ChildFailedError, ragent.LaunchError) as error:
            print(type(error).__name__, error.report.text == str(error), str(error).splitlines()[0])
    """
    lines = sandbox.run(code).succeeds().stdout.splitlines()
    assert lines[0].startswith("ChildFailedError True"), lines
    for line, reason in zip(lines[1:], ("`--rdzv-conf", "`--nproc-per-node x`", "'--no-such-flag'"), strict=True):
        assert line.startswith("CommandLineError True error: ") and reason in line, line


def test_report_is_private(sandbox):
    """The temporary report can be read by this user only."""
    worker = """
    import glob, os, stat
    for path in glob.glob(os.environ["TMPDIR"] + "/ragent-*.json"):
        print(oct(stat.S_IMODE(os.stat(path).st_mode)), flush=True)
    """
    script = sandbox.write("worker.py", worker)
    assert sandbox.run(f"import ragent\nragent.run([{script!r}])").succeeds().stdout == "0o600\n"


def launch(sandbox, before="", after=""):
    script = sandbox.write("worker.py", POLITE)
    run = sandbox.start(
        "\n".join(
            [
                "import os, signal, threading, ragent",
                before,
                "try:",
                f"    ragent.run(['--shutdown-timeout', '300', {script!r}])",
                "except ragent.LaunchError as error:",
                "    print('result', error.report.result, flush=True)",
                after,
            ]
        )
    )
    run.prints("worker")
    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_passed_on(sandbox, number):
    """A signal reaches the workers, and ends this process once they have ended."""
    run = launch(sandbox)
    os.kill(run.pid, number)
    run.prints("saved")
    run.finish()
    assert run.code == -number, run.stderr


def test_handlers_of_the_caller(sandbox):
    """A handler of the caller is called after the end of the job, and is installed again."""
    before = "signal.signal(signal.SIGTERM, lambda *_: print('handled', flush=True))\n"
    before += "former = [signal.getsignal(n) for n in range(1, 65)]"
    run = launch(sandbox, before, "assert former == [signal.getsignal(n) for n in range(1, 65)]")
    os.kill(run.pid, signal.SIGTERM)
    run.succeeds()
    assert run.stdout.split()[-4:] == ["saved", "handled", "result", "all_left"]


def test_ignored_signals(sandbox):
    """A signal that this process ignores, as after nohup, is not passed on."""
    run = launch(sandbox, "signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    os.kill(run.pid, signal.SIGHUP)
    os.kill(run.pid, signal.SIGTERM)
    assert "TERM" in run.prints("saving")
    run.finish()
    assert run.code == -signal.SIGTERM


def test_further_signals_of_the_job(sandbox):
    """A signal that `--signals-to-handle` names is passed on as well."""
    script = sandbox.write("worker.py", POLITE)
    code = f"""
    import ragent, signal
    signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
    try:
        ragent.run(["--signals-to-handle=SIGUSR1", {script!r}])
    except ragent.LaunchError as error:
        print("result", error.report.result, flush=True)
    """
    run = sandbox.start(code)
    run.prints("worker")
    os.kill(run.pid, signal.SIGUSR1)
    run.prints("handled")
    run.prints("result all_left")
    run.succeeds()


def test_interrupt(sandbox):
    """SIGINT is passed on once, so that workers keep their time, and becomes KeyboardInterrupt."""
    run = launch(sandbox)
    os.kill(run.pid, signal.SIGINT)
    run.prints("saved")
    run.finish()
    assert run.code == -signal.SIGINT
    assert run.stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("in_thread", [False, True])
def test_ctrl_c(sandbox, in_thread):
    """Ctrl-C in a terminal reaches the program once, also if it was started in another thread."""
    script = sandbox.write("worker.py", POLITE)
    target = f"ragent.run(['--shutdown-timeout', '300', {script!r}])"
    if in_thread:
        main = f"""
        import ragent, threading
        end = threading.Event()
        def job():
            try:
                {target}
            except ragent.LaunchError as error:
                print("result", error.report.result, flush=True)
            end.set()
        threading.Thread(target=job).start()
        try:
            end.wait()
        except KeyboardInterrupt:
            end.wait()
        """
    else:
        main = f"""
        import ragent
        try:
            {target}
        except KeyboardInterrupt as error:
            print("result", error.__context__.report.result, flush=True)
        """
    controller, terminal = pty.openpty()
    # The process leads a session, whose terminal is the new one.
    lead = "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    lead += "os.execv(sys.argv[1], sys.argv[1:])"
    run = sandbox.start("-c", lead, sys.executable, sandbox.write("main.py", main), stdin=terminal)
    os.close(terminal)
    run.prints("worker")
    os.write(controller, b"\x03")
    run.prints("saved")
    run.prints("result all_left")
    run.succeeds()
    os.close(controller)


def test_other_threads(sandbox):
    """In another thread than the main one, a job runs without changing handlers."""
    os.mkfifo(sandbox.work / "fifo")
    run = sandbox.start(
        """
        import ragent, signal, threading
        args = ["--no-python", "sh", "-c", "echo up; read line < fifo"]
        thread = threading.Thread(target=ragent.run, args=(args,))
        thread.start()
        input()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
        with open("fifo", "w") as fifo:
            print("go on", file=fifo)
        thread.join()
        """,
        stdin=subprocess.PIPE,
    )
    run.prints("up")
    run.process.stdin.write("check\n")
    run.process.stdin.close()
    run.succeeds()


def test_exceptions_while_waiting(sandbox):
    """An exception of another handler ends the job first, and is raised then."""
    before = "def stop(*_): raise TimeoutError('enough')\nsignal.signal(signal.SIGALRM, stop)"
    run = launch(sandbox, before)
    os.kill(run.pid, signal.SIGALRM)
    run.prints("saved")
    run.finish()
    assert run.code == 1 and run.stderr.rstrip().endswith("TimeoutError: enough")


def test_killed_process(sandbox):
    """If this process is killed, the program leaves the job, and no process is left."""
    run = launch(sandbox)
    os.kill(run.pid, signal.SIGKILL)
    run.prints("saved")
    run.finish()
    sandbox.wait_until_nothing_left()
    # A process that is killed cannot remove its file.
    for path in sandbox.temporary.glob("ragent-*"):
        assert stat.S_ISREG(path.stat().st_mode)
        path.unlink()


def test_over_ssh(sandbox):
    """A launch over ssh gets no file for its report, as the agents of all hosts would write it. A failure is a LaunchError."""
    hosts = sandbox.write("hosts", "localhost\n")
    code = f"import ragent\nragent.run(['launch', '--hostfile', {hosts!r}, '--dry-run', 'train.py'])"
    run = sandbox.run(code).succeeds()
    assert "train.py" in run.stdout and "--report" not in run.stdout
    run = sandbox.run(
        f"""
        import ragent
        try:
            ragent.run(["launch", "--hostfile", {hosts!r}, "--ssh", "false", "train.py"])
        except ragent.LaunchError as error:
            print(error.exit_code, error.report)
        """
    )
    assert run.succeeds().stdout.endswith("1 None\n"), run.stdout + run.stderr


def test_ignored_sigchld(sandbox):
    """A failure is an exception also if this process ignores SIGCHLD, so that exit codes of child processes are lost."""
    sandbox.run(
        """
        import signal, ragent
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            ragent.run(["--no-python", "false"])
        except ragent.ChildFailedError as error:
            assert error.report.exit_code == 1
        else:
            raise AssertionError("no exception")
        """
    ).succeeds()


def test_invalid_command_line(sandbox):
    """An invalid command line is a ValueError, as with torchrun. By `main`, it ends the process with 2 and no traceback."""
    sandbox.run(
        """
        import ragent
        words = ["--nproc-per-node", "many", "train.py"]
        for launch in (ragent.run, ragent.main):
            try:
                launch(words)
            except ValueError as error:
                assert isinstance(error, ragent.LaunchError) and error.exit_code == 2, error
                assert isinstance(error, SystemExit) == (launch is ragent.main)
            else:
                raise AssertionError("no exception")
        try:
            ragent.run(["--nnodes", "2", "--rdzv-endpoint", "localhost:0", "--rdzv-conf", "join_timeout=1", "train.py"])
        except ValueError:
            pass
        """
    ).succeeds()
    run = sandbox.run("import ragent\nragent.main(['--nproc-per-node', 'many', 'train.py'])")
    assert run.code == 2 and "Traceback" not in run.stderr, run.stderr
    assert "--nproc-per-node many" in run.stderr


def test_unnamed_job_of_main(sandbox):
    """`main` takes torchrun's command lines: with etcd, also one of several nodes without a name, which `run` refuses."""
    run = sandbox.run(
        """
        import ragent
        words = ["--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", "localhost:1", "--rdzv-conf", "join_timeout=1"]
        for launch in (ragent.run, ragent.main):
            try:
                launch([*words, "--no-python", "true"])
            except ragent.LaunchError as error:
                print(error.exit_code)
        """
    ).succeeds()
    assert run.stdout.split() == ["2", "3"], run.stdout + run.stderr
    assert run.stderr.count("the job has no name") == 1, run.stderr


def test_replaced_streams(sandbox):
    """What replaces `sys.stdout` and `sys.stderr` receives the output of the workers: an object, and a file."""
    run = sandbox.run(
        """
        import contextlib, io, sys
        import ragent

        words = ["--tee", "3", "--no-python", "bash", "-c", "echo 'to stdout: \u00e4'; echo to stderr >&2"]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ragent.run(words)
        assert out.getvalue() == "[default0]:to stdout: \u00e4\\n", out.getvalue()
        assert "[default0]:to stderr\\n" in err.getvalue(), err.getvalue()
        with open("file", "w+", encoding="utf-8") as file:
            with contextlib.redirect_stdout(file):
                print("before")
                ragent.run(words)
                print("after")
            file.seek(0)
            assert file.read() == "before\\n[default0]:to stdout: \u00e4\\nafter\\n"
        ragent.run(words)
        """
    ).succeeds()
    assert run.stdout == "[default0]:to stdout: \u00e4\n"
    assert run.stderr.count("[default0]:to stderr\n") == 2, run.stderr


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
