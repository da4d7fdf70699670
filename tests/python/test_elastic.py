"""`ragent.elastic_launch`: functions on the workers of a job, and their values."""

import os
import pickle

import pytest
from support import free_port, needs

from ragent import LaunchConfig, elastic_launch
from ragent._elastic import _flags
from ragent._worker import _open_private, read_results, write_private


def test_values_by_rank(sandbox):
    """A function of the main script runs on each worker, and its values are returned by rank."""
    run = sandbox.run(
        """
        import os, sys
        import ragent
        from dataclasses import dataclass

        @dataclass
        class Result:
            rank: int
            args: tuple

        def train(*args):
            return Result(int(os.environ["RANK"]), (args, sys.argv[1:], sys.executable, __name__))

        if __name__ == "__main__":
            results = ragent.elastic_launch(ragent.LaunchConfig(nproc_per_node=2), train)(3, "x")
            expected = (3, "x"), ["flag"], sys.executable, "__mp_main__"
            assert results == {rank: Result(rank, expected) for rank in range(2)}, results
        """,
        "flag",
        env={"PYTHON_EXEC": "/bin/false", "PET_NNODES": "7", "PET_MODULE": "1"},
    ).succeeds()
    assert run.stderr == ""


def test_private_folder(sandbox):
    """Other users cannot read the folder with the arguments, which is removed."""
    run = sandbox.run(
        """
        import os, stat
        import ragent

        def folder_of_this_worker():
            command = open("/proc/self/cmdline").read().split("\\0")
            return command[-2], oct(stat.S_IMODE(os.stat(command[-2]).st_mode))

        if __name__ == "__main__":
            folder, mode = ragent.elastic_launch(ragent.LaunchConfig(), folder_of_this_worker)()[0]
            assert mode == "0o700" and not os.path.exists(folder)
        """
    )
    run.succeeds()


def test_last_round(sandbox):
    """After a restart, the values are those of the last round."""
    sandbox.run(
        """
        import os
        import ragent

        def train():
            rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            if restarts == 0 and rank == 1:
                # Fails once the other worker has stored its value.
                import time
                folder = open("/proc/self/cmdline").read().split("\\0")[-2]
                while not os.path.exists(os.path.join(folder, "result-0")):
                    time.sleep(0.01)
                raise ValueError("once")
            return rank, restarts

        if __name__ == "__main__":
            config = ragent.LaunchConfig(nproc_per_node=2, max_restarts=1)
            assert ragent.elastic_launch(config, train)() == {0: (0, 1), 1: (1, 1)}
        """
    ).succeeds()


def test_values_of_earlier_rounds(tmp_path):
    """Values of ranks that only an earlier round had are left out."""
    for age, (rank, world) in enumerate([(0, "2"), (1, "2"), (2, "4"), (3, "4")]):
        path = tmp_path / f"result-{rank}"
        path.write_bytes(pickle.dumps(["1", world]) + pickle.dumps(f"value {rank}"))
        os.utime(path, (age, age))
    (tmp_path / "result-7~").write_bytes(b"incomplete")
    assert read_results(str(tmp_path)) == {2: "value 2", 3: "value 3"}


def test_planted_files(tmp_path):
    """A file that another user can have written is not unpickled, and no link is followed."""
    path, elsewhere, link = tmp_path / "call", tmp_path / "elsewhere", tmp_path / "link"

    def is_read(name):
        try:
            with _open_private(str(name)) as file:
                return file.read() == b"mine"
        except OSError:
            return False

    write_private(str(path), b"mine")
    assert is_read(path) and path.stat().st_mode & 0o777 == 0o600
    for mode, expected in ((0o666, False), (0o620, False), (0o644, True)):
        path.chmod(mode)
        assert is_read(path) == expected
    path.chmod(0o666)
    with pytest.raises(PermissionError) as refused:
        _open_private(str(path))
    for part in (f"`{path}`", f"owner is uid {os.geteuid()},", "mode -rw-rw-rw-", "set TMPDIR to a local folder"):
        assert part in str(refused.value)
    path.chmod(0o644)
    link.symlink_to(path)
    assert not is_read(link)
    os.link(path, elsewhere)
    assert not is_read(path)
    elsewhere.unlink()
    os.mkfifo(elsewhere)
    assert is_read(path) and not is_read(elsewhere)
    if os.geteuid() == 0:
        os.chown(path, 1234, -1)
        assert not is_read(path)
        link.unlink()
        link.symlink_to(path)
        write_private(str(link), b"mine")
        assert is_read(link) and not is_read(path)


def test_exceptions(sandbox):
    """An exception of the function is in the report with its traceback, and in the error file in torch's format."""
    run = sandbox.run(
        """
        import os
        import ragent

        def train(batch):
            if os.environ["RANK"] == "1":
                raise ValueError(f"no such batch: {batch}")
            import signal
            signal.pause()

        if __name__ == "__main__":
            try:
                config = ragent.LaunchConfig(nproc_per_node=2, max_restarts=0, log_dir="logs")
                ragent.elastic_launch(config, train)(17)
            except ragent.ChildFailedError as error:
                import json
                assert error.name == "train"
                rank, failure = error.get_first_failure()
                assert (rank, failure.exitcode) == (1, 1)
                for text in (str(error), failure.message):
                    assert "ValueError: no such batch: 17" in text and "in train" in text, text
                with open(failure.error_file) as file:
                    message = json.load(file)["message"]
                assert message["message"] == "ValueError: no such batch: 17"
                assert int(message["extraInfo"]["timestamp"]) == failure.timestamp
                assert message["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last):")
            else:
                raise SystemExit("no error")
        """
    ).succeeds()
    assert run.stderr.count("ValueError: no such batch: 17") >= 1


@pytest.mark.parametrize("end, code", [("sys.exit(0)", 0), ("sys.exit()", 0), ("sys.exit(5)", 5), ("os._exit(6)", 6)])
def test_exits(sandbox, end, code):
    """A function that exits with 0 has the value None. With another code, it is a failure with that code."""
    sandbox.run(
        f"""
        import os, sys
        import ragent

        def train():
            {end}

        if __name__ == "__main__":
            try:
                results = ragent.elastic_launch(ragent.LaunchConfig(max_restarts=0), train)()
            except ragent.ChildFailedError as error:
                assert error.failures[0].exitcode == {code}
            else:
                assert {code} == 0 and results == {{0: None}}
        """
    ).succeeds()


def test_values_that_cannot_be_pickled(sandbox):
    """A value that cannot be pickled is a failure whose message states it."""
    sandbox.run(
        """
        import threading
        import ragent

        def train():
            return threading.Lock()

        if __name__ == "__main__":
            try:
                ragent.elastic_launch(ragent.LaunchConfig(max_restarts=0), train)()
            except ragent.ChildFailedError as error:
                assert "failed to return a value of type `lock` on rank 0: it cannot be pickled" in str(error), error
            else:
                raise SystemExit("no error")
        """
    ).succeeds()


def test_functions_that_cannot_be_pickled(sandbox):
    """Arguments that cannot be pickled are an error before the program is started."""
    sandbox.program.unlink()
    sandbox.run(
        """
        import threading
        import ragent

        def train(lock):
            pass

        if __name__ == "__main__":
            try:
                ragent.elastic_launch(ragent.LaunchConfig(), train)(threading.Lock())
            except TypeError as error:
                assert "failed to launch `train`: the function or its arguments cannot be pickled" in str(error)
            else:
                raise SystemExit("no error")
        """
    ).succeeds()


def test_interactive_functions(sandbox):
    """A function of an interactive session, or a lambda, is launched if cloudpickle is installed."""
    needs("cloudpickle")
    code = """import functools, ragent
class Settings: step = 1
def f(x, settings): return x + settings.step
print(ragent.elastic_launch(ragent.LaunchConfig(), f)(2, Settings))
print(ragent.elastic_launch(ragent.LaunchConfig(), functools.partial(f, settings=Settings))(3))
print(ragent.elastic_launch(ragent.LaunchConfig(), lambda: 5)())
"""
    assert sandbox.run("-c", code).succeeds().stdout == "{0: 3}\n{0: 4}\n{0: 5}\n"


def test_scripts_without_a_guard(sandbox):
    """A script that launches a job while a worker imports it fails with the message of multiprocessing."""
    run = sandbox.run(
        """
        import ragent

        def train():
            pass

        ragent.elastic_launch(ragent.LaunchConfig(max_restarts=0), train)()
        """
    )
    assert run.code == 1 and "if __name__ == '__main__':" in run.stderr


def test_programs(sandbox):
    """A path of a program runs it with the arguments as strings."""
    run = sandbox.run(
        """
        import ragent
        config = ragent.LaunchConfig(nproc_per_node=2)
        assert ragent.elastic_launch(config, "sh")("-c", 'echo "$RANK $0"', 7) == {}
        """
    ).succeeds()
    assert sorted(run.stdout.splitlines()) == ["0 7", "1 7"]


def test_several_nodes(sandbox):
    """Each node returns the values of its own workers."""
    code = f"""
    import os, sys
    import ragent

    def train():
        return int(os.environ["GROUP_RANK"])

    if __name__ == "__main__":
        config = ragent.LaunchConfig(2, 2, 2, run_id="job", rdzv_endpoint="127.0.0.1:{free_port()}")
        results = ragent.elastic_launch(config, train)()
        group = min(results) // 2
        assert results == {{rank: group for rank in (2 * group, 2 * group + 1)}}, results
        print("group", group)
    """
    nodes = [sandbox.start(code) for _ in range(2)]
    groups = sorted(node.succeeds().stdout for node in nodes)
    assert groups == ["group 0\n", "group 1\n"]


def test_signals_and_files(sandbox):
    """The folder is removed before a signal ends this process."""
    run = sandbox.start(
        """
        import signal
        import ragent

        def train():
            print("worker", flush=True)
            signal.pause()

        if __name__ == "__main__":
            ragent.elastic_launch(ragent.LaunchConfig(), train)()
        """
    )
    run.prints("worker")
    run.process.terminate()
    assert run.finish().code == -15


def test_flags():
    """Each field of the configuration becomes its flag."""
    assert _flags(LaunchConfig()) == [
        "--nnodes=1:1",
        "--standalone",
        "--nproc-per-node=1",
        "--max-restarts=3",
        "--role=default_role",
    ]
    config = LaunchConfig(
        min_nodes=2,
        max_nodes=4,
        nproc_per_node="gpu",
        run_id="run7",
        rdzv_endpoint="node0",
        rdzv_backend="static",
        rdzv_configs={"rank": 1, "timeout": 60},
        role="trainer",
        max_restarts=0,
        log_dir="logs",
        redirects={0: 3, 1: 2},
        tee=1,
        local_ranks_filter=[1, 0],
        log_line_prefix_template="[${rank}]",
        local_addr="10.0.0.1",
        event_log_handler="console",
        numa_binding="node",
        signals_to_handle="SIGTERM,SIGUSR1",
        duplicate_stdout_filters=["a,b", "c"],
        duplicate_stderr_filters=["d"],
        virtual_local_rank=True,
        shutdown_timeout=0,
        flags=["--standby"],
    )
    assert _flags(config) == [
        "--nnodes=2:4",
        "--rdzv-backend=static",
        "--rdzv-endpoint=node0",
        "--rdzv-id=run7",
        "--node-rank=1",
        "--rdzv-conf=timeout=60",
        "--nproc-per-node=gpu",
        "--max-restarts=0",
        "--log-dir=logs",
        "--redirects=0:3,1:2",
        "--tee=1",
        "--local-ranks-filter=0,1",
        "--role=trainer",
        "--local-addr=10.0.0.1",
        "--log-line-prefix-template=[${rank}]",
        "--event-log-handler=console",
        "--signals-to-handle=SIGTERM,SIGUSR1",
        "--shutdown-timeout=0",
        "--numa-binding=node",
        "--duplicate-stdout-filters=a,,b,c",
        "--duplicate-stderr-filters=d",
        "--virtual-local-rank",
        "--standby",
    ]


def test_health_check_server():
    """torch's third parameter is accepted as long as it asks for nothing."""
    elastic_launch(LaunchConfig(), "true", health_check_server=None)
    with pytest.raises(ValueError, match="failed to launch with a `health_check_server`"):
        elastic_launch(LaunchConfig(), "true", object())


def test_unsupported_values():
    """A value that would be ignored is an error that names its field."""
    from dataclasses import dataclass, field

    @dataclass
    class Newer(LaunchConfig):
        metrics_cfg: dict = field(default_factory=dict)
        shiny: int = 0

    assert _flags(Newer())
    cases = {
        "metrics_cfg={'a': 'b'}": Newer(metrics_cfg={"a": "b"}),
        "shiny=1": Newer(shiny=1),
        "min_nodes=3": LaunchConfig(3, 2),
        "run_id=''": LaunchConfig(2, 2, rdzv_endpoint="node0"),
        "rdzv_endpoint=''": LaunchConfig(1, 2, run_id="a"),
    }
    for text, config in cases.items():
        with pytest.raises(ValueError, match="failed to launch the job: `") as raised:
            _flags(config)
        assert text in str(raised.value)
    with pytest.raises(TypeError, match="failed to launch an entrypoint of type `NoneType`"):
        elastic_launch(LaunchConfig(), None)


def test_functions_end_together(sandbox):
    """A worker does not end before the functions of the other workers of its node have returned."""
    sandbox.run(
        """
        import atexit, os, time
        import ragent

        def has(line):
            return line in open("log").read()

        def train():
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            if os.environ["RANK"] == "1":
                atexit.register(os.write, log, b"1 exits\\n")
                os.write(log, b"1 returns\\n")
                return
            while not has("1 returns"):
                time.sleep(0.01)
            # Long enough for a worker that does not wait.
            for _ in range(100):
                if not has("1 exits"):
                    time.sleep(0.02)
            os.write(log, b"0 returns\\n")

        if __name__ == "__main__":
            open("log", "w").close()
            ragent.elastic_launch(ragent.LaunchConfig(nproc_per_node=2), train)()
            lines = open("log").read().splitlines()
            assert lines == ["1 returns", "0 returns", "1 exits"], lines
        """
    ).succeeds()
