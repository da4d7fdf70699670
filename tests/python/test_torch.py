"""The real torch and accelerate: their exceptions, namespaces, configurations and launchers."""

import pytest
from support import REPOSITORY, needs

pytestmark = pytest.mark.usefixtures("needs_torch")

WORKER = """
    import os, sys
    print("rank", os.environ["RANK"], sys.argv[1:], flush=True)
    if os.environ.get("FAILS") == os.environ["RANK"]:
        raise SystemExit(3)
"""


def test_torchs_exception(sandbox):
    """torch's handlers catch the exception, and its functions read it. `@record` passes it on."""
    run = sandbox.run(
        """
        import copy, json, os, pickle
        import ragent

        def train():
            raise ValueError("no such batch")

        def launch():
            ragent.elastic_launch(ragent.LaunchConfig(max_restarts=0, log_dir="logs"), train)()

        if __name__ == "__main__":
            from torch.distributed.elastic.multiprocessing import errors

            os.environ["TORCHELASTIC_ERROR_FILE"] = os.path.abspath("error.json")
            try:
                errors.record(launch)()
            except errors.ChildFailedError as error:
                first = error
            for error in (first, copy.copy(first), pickle.loads(pickle.dumps(first))):
                assert isinstance(error, ragent.ChildFailedError) and isinstance(error, errors.ChildFailedError)
                rank, failure = error.get_first_failure()
                assert rank == 0 and isinstance(failure, errors.ProcessFailure) and failure.exitcode == 1
                assert "ValueError: no such batch" in error.format_msg() and "train FAILED" in error.format_msg()
                assert str(error) == error.report.text
            with open("error.json") as file:
                message = json.load(file)["message"]
            assert message["message"] == "ValueError: no such batch" and message["errorCode"] == 1
        """
    )
    run.succeeds()


def test_failures_without_an_error_file(sandbox):
    """A worker that was killed has no error file. Torch's formatter and `@record` accept it."""
    script = sandbox.write("worker.py", "import os; os.kill(os.getpid(), 9)")
    sandbox.run(
        f"""
        import ragent
        from torch.distributed.elastic.multiprocessing import errors

        try:
            errors.record(ragent.main)([{script!r}])
        except errors.ChildFailedError as error:
            _, failure = error.get_first_failure()
            assert failure.error_file == "<N/A>" and failure.signal_name() == "SIGKILL"
            assert "exitcode  : -9" in error.format_msg()
        """
    ).succeeds()


def test_namespace(sandbox):
    """`run` takes the namespace of torchrun's parser, with each kind of flag, and the variables of its defaults."""
    script = sandbox.write("worker.py", WORKER)
    run = sandbox.run(
        f"""
        import os
        os.environ.update(PET_NPROC_PER_NODE="7", PET_NO_PYTHON="1", PET_ROLE="r")
        import ragent
        from torch.distributed import run
        from ragent._namespace import command_of

        args = run.parse_args(["--nproc-per-node=2", "--max_restarts", "1", "--standalone", "--duplicate-stdout-filters",
            "a,,b,c", "--monitor-interval=5", "-t", "3", {script!r}, "--report", "x"])
        args.no_python = False
        command = command_of(args)
        assert command.args == ["--nproc-per-node=2", "--standalone", "--max-restarts=1", "--monitor-interval=5.0", "--tee=3",
            "--duplicate-stdout-filters=a,,b,c", {script!r}, "--report", "x"], command.args
        assert command.variables == {{"PET_NO_PYTHON": "0"}} and command.by_the_name_of == "torchrun"
        assert ragent.run(args) is None
        args.use_env = False
        assert command_of(args).args[-3:] == ["--local-rank=${{local_rank}}", "--report", "x"]
        """
    ).succeeds()
    assert sorted(run.stdout.splitlines()) == [
        "[r0]:rank 0 ['--report', 'x']",
        "[r1]:rank 1 ['--report', 'x']",
    ]


def test_torchs_configuration(sandbox):
    """`elastic_launch` takes torch's LaunchConfig, whose unsupported values are errors."""
    sandbox.run(
        """
        import os
        import ragent

        def train(base):
            print("from", os.environ["RANK"], flush=True)
            return base + int(os.environ["RANK"])

        if __name__ == "__main__":
            from ragent._elastic import _flags
            from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
            from torch.distributed.launcher.api import LaunchConfig

            logs = DefaultLogsSpecs(log_dir="logs", redirects={1: Std.OUT}, tee=Std.NONE, local_ranks_filter={0})
            config = LaunchConfig(1, 1, 2, logs_specs=logs, rdzv_backend="c10d", run_id="a", shutdown_timeout=3)
            expected = {"--log-dir=logs", "--redirects=1:1", "--local-ranks-filter=0", "--rdzv-id=a", "--standalone"}
            assert expected < set(_flags(config)), _flags(config)
            assert ragent.elastic_launch(config, train)(5) == {0: 5, 1: 6}
            config = LaunchConfig(1, 1, 1, rdzv_endpoint="127.0.0.1:0", rdzv_backend="static", rdzv_configs={"rank": 0})
            assert {"--node-rank=0", "--rdzv-conf=timeout=900"} < set(_flags(config)), _flags(config)
            config.metrics_cfg = {"a": "b"}
            try:
                _flags(config)
            except ValueError as error:
                assert "metrics_cfg" in str(error)
            else:
                raise SystemExit("no error")
        """
    ).succeeds()


def test_tensors(sandbox):
    """Tensors are passed to the function, returned from it, and accepted as steps."""
    sandbox.run(
        """
        import torch
        import ragent

        def train(tensor):
            ragent.step(torch.tensor(3), total=torch.tensor(4))
            return tensor * 2

        if __name__ == "__main__":
            values = ragent.elastic_launch(ragent.LaunchConfig(), train)(torch.ones(2))
            assert values[0].tolist() == [2.0, 2.0]
        """
    ).succeeds()


@pytest.mark.parametrize("fails", [pytest.param("", marks=pytest.mark.long), "1"])
def test_accelerate_launch(sandbox, fails):
    """`accelerate launch` runs its workers through `ragent.run` in place of torch's function."""
    needs("accelerate")
    script = REPOSITORY / "tests/torch/frameworks/train_accelerate.py"
    run = sandbox.run(
        """
        import sys
        import ragent, torch.distributed.run
        torch.distributed.run.run = ragent.run
        from accelerate.commands.accelerate_cli import main
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        sys.argv[0] = "accelerate"
        try:
            main()
        except ChildFailedError as error:
            sys.exit(f"rank {error.get_first_failure()[0]} failed")
        """,
        *("launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
        script,
        env={"FAILS": fails, "HF_HUB_OFFLINE": "1"},
    )
    if fails:
        assert run.code == 1 and run.stderr.rstrip().endswith("rank 1 failed"), run.stderr
    else:
        run.succeeds()
        for rank in range(2):
            assert f"accelerate rank={rank} world_size=2 steps=4" in run.stdout


def test_accelerates_notebook_launcher(sandbox):
    """accelerate's `notebook_launcher` runs a function through `ragent.elastic_launch`."""
    needs("accelerate")
    run = sandbox.run(
        """
        import os
        import ragent

        def train(text):
            # One call writes the line: `print` would write its parts, and those of the other worker between them.
            os.write(1, f"{text} {os.environ['RANK']} {os.environ['WORLD_SIZE']}\\n".encode())

        if __name__ == "__main__":
            import torch.distributed.launcher.api as api

            api.elastic_launch = ragent.elastic_launch
            from accelerate import notebook_launcher
            notebook_launcher(train, ("hello",), num_processes=2, use_port="0")
        """
    ).succeeds()
    assert {"hello 0 2", "hello 1 2"} < set(run.stdout.splitlines())
