"""The examples of `docs/recipes.md`: their scripts go on after a kill, and the tools of operators accept their files.

`make test-frameworks` runs the scripts of the frameworks in `FRAMEWORKS`, and makes the environment of the tools.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
from support import REPOSITORY, free_port, needs, wait_until
from test_callbacks import PYTHON, needs_framework

EXAMPLES = REPOSITORY / "examples"
OPERATORS = REPOSITORY / ".venvs/operators/bin/python"


def ask(sandbox, *words):
    """Runs a command of ragent."""
    return subprocess.run([sandbox.program, *words], env=sandbox.environment, capture_output=True, text=True, check=False)


def status(sandbox):
    """Returns the status of the job on this machine. It is empty while there is none."""
    ended = ask(sandbox, "status", "--json")
    return json.loads(ended.stdout) if ended.returncode == 0 else {}


def saved_step(sandbox, storage):
    """Returns the newest step that the status shows as saved, or 0."""
    seen = status(sandbox)
    step = seen.get("saved_step") if storage == "disk" else (seen.get("memory") or {}).get("step")
    return step or 0


def wait_for_step(sandbox, job, storage, after):
    """Waits until a step after this one is saved."""
    wait_until(
        lambda: saved_step(sandbox, storage) > after or job.process.poll() is not None,
        lambda: f"no step after {after} is saved:\n{status(sandbox)}\n{job.stdout}\n{job.stderr}",
    )
    assert job.process.poll() is None, f"{job.stdout}\n{job.stderr}"


def kill_worker(sandbox, rank):
    """Kills the worker of this rank with SIGKILL."""

    def is_worker(pid):
        try:
            return f"RANK={rank}" in pathlib.Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        except OSError:
            return False

    # A process that the worker has started has the same variable, and a higher process id.
    os.kill(min(pid for pid in sandbox.processes() if is_worker(pid)), signal.SIGKILL)


def resumes(job):
    """Returns the step of each time that the script has resumed."""
    return [int(step) for step in re.findall(r"resumed after step (\d+)\n", job.stdout)]


def wait_for_resume(job, number):
    """Waits until the script has resumed as often, and returns the step of the last time."""
    wait_until(
        lambda: len(resumes(job)) >= number or job.process.poll() is not None,
        lambda: f"it does not resume:\n{job.stdout}\n{job.stderr}",
    )
    assert len(resumes(job)) >= number, f"{job.stdout}\n{job.stderr}"
    return resumes(job)[-1]


def recipe(sandbox, name, options, storage="disk"):
    """A job whose worker is killed goes on from the last saved step. After a notice it ends, and a second job is trained to the end."""

    folder = sandbox.work / "checkpoints"
    # The example with FSDP2 makes no folder, since its file system may not be mounted.
    folder.mkdir()

    def start(steps):
        script = EXAMPLES / name / "train.py"
        flags = ["--nproc-per-node", 2, "--max-restarts", 1, "--notice", 120]
        variables = {"HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        words = ["--folder", folder, "--steps", steps, *options]
        python = sys.executable if name == "fsdp2" else PYTHON
        return sandbox.start("-m", "ragent", *flags, script, *words, python=python, env=variables)

    first = start(1_000_000)
    wait_for_step(sandbox, first, storage, after=0)
    seen = saved_step(sandbox, storage)
    # The job may have resumed before, if a busy machine has lost its lease.
    before = len(resumes(first))
    kill_worker(sandbox, 1)
    step = wait_for_resume(first, before + 1)
    assert step >= seen, f"{seen}\n{first.stdout}"
    # It goes on.
    wait_for_step(sandbox, first, storage, after=step)
    notice = ask(sandbox, "notice", "end", "--wait")
    assert notice.returncode == 0, f"{notice.stderr}\n{first.stdout}\n{first.stderr}"
    first.finish()
    assert first.code == 5, f"{first.code}\n{first.stderr}"
    last = int(re.search(r"the job is saved at step ([\d,]+)", first.stderr)[1].replace(",", ""))
    assert last > step

    second = start(last + 20).succeeds()
    assert resumes(second)[0] == last
    assert f"trained {last + 20} steps" in second.stdout


@pytest.mark.parametrize("name", ["accelerate", "deepspeed", pytest.param("fsdp2", marks=pytest.mark.long), "lightning", "transformers"])
def test_script(sandbox, name):
    """The script goes on from its checkpoint on disk. That of FSDP2 goes on from memory, and in another job from the folder."""
    if name == "fsdp2":
        # It is a part of torch.
        needs("torch")
        recipe(sandbox, name, ["--save-every", 100_000_000], storage="memory")
    else:
        needs_framework(name)
        recipe(sandbox, name, ["--save-every", 50])


def needs_operators():
    if not OPERATORS.exists():
        pytest.skip("`scripts/setup-venv.sh operators` makes the environment with the tools of operators")


def of_operators(sandbox, *command):
    """Runs Python of this environment in the repository, and returns what it prints."""
    environment = {**sandbox.environment, "PYTHONPATH": ""}
    command = [OPERATORS, *command]
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def train_stub(sandbox):
    """Writes a script in place of the training. Each worker prints where it is."""
    return sandbox.write(
        "train.py",
        """
        import os, sys
        names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_MAX_RESTARTS")
        os.write(1, f"at {' '.join(os.environ[name] for name in names)} {' '.join(sys.argv[1:])}\\n".encode())
        """,
    )


def places(nodes):
    """Waits until the agents of all nodes have succeeded, and returns the lines of their workers."""
    return sorted(line for run in nodes for line in run.succeeds().stdout.splitlines() if line.startswith("at "))


def of_node(sandbox):
    """The environment of a node, with `ragent` in PATH."""
    return {"PATH": f"{sandbox.site / 'bin'}:{sandbox.environment['PATH']}", "PYTHON_EXEC": sys.executable}


def start_node(sandbox, command, variables):
    """Starts a command line as an operator does on a node."""
    program = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
    return sandbox.start("-c", program, *command, env={**of_node(sandbox), **variables})


def test_kubeflow(sandbox):
    """The command of the TrainJob starts ragent by the name of torchrun, and forms a job from the variables of the operator."""
    yaml = pytest.importorskip("yaml")
    trainer = yaml.safe_load((EXAMPLES / "kubeflow/trainjob.yaml").read_text())["spec"]["trainer"]
    assert ask(sandbox, "install-torchrun", sandbox.site / "bin").returncode == 0
    train_stub(sandbox)
    port = str(free_port())

    def start(rank):
        variables = {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": "2",
            "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": "localhost",
            "PET_MASTER_PORT": port,
        }
        return start_node(sandbox, trainer["command"], variables)

    lines = places([start(1), start(0)])
    assert lines == [f"at {rank} 4 {rank // 2} 3 --folder /checkpoints" for rank in range(4)]


def test_kubeflow_schema(sandbox):
    """The API of Kubeflow Trainer has each field of the TrainJob."""
    needs_operators()
    script = """if True:
        import sys, yaml
        from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob as TrainJob
        job = yaml.safe_load(open(sys.argv[1]))
        # What the API does not have is left out.
        assert TrainJob.from_dict(job).to_dict() == job, TrainJob.from_dict(job)
        job["spec"]["trainer"]["numNode"] = 2
        assert TrainJob.from_dict(job).to_dict() != job
    """
    of_operators(sandbox, "-c", script, EXAMPLES / "kubeflow/trainjob.yaml")


def test_skypilot(sandbox):
    """The command of the task forms a job from the variables of SkyPilot."""
    yaml = pytest.importorskip("yaml")
    task = yaml.safe_load((EXAMPLES / "skypilot/task.yaml").read_text())
    port = free_port()
    script = task["run"].replace("29400", str(port)).replace("examples/fsdp2/train.py", train_stub(sandbox))
    assert str(port) in script and "fsdp2" not in script
    variables = {
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NUM_GPUS_PER_NODE": "2",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
        "SKYPILOT_TASK_ID": "sky-2026-11-27-09-00-00-000000_fsdp2_1-0",
    }
    nodes = [start_node(sandbox, ["bash", "-c", script], {**variables, "SKYPILOT_NODE_RANK": str(rank)}) for rank in (1, 0)]
    assert places(nodes) == [f"at {rank} 4 {rank // 2} 10 --folder /checkpoints" for rank in range(4)]


def test_skypilot_schema(sandbox):
    """SkyPilot accepts the task, and refuses a field that it does not know."""
    needs_operators()
    script = """if True:
        import sys, sky, yaml
        task = sky.Task.from_yaml(sys.argv[1])
        assert task.num_nodes == 2 and list(task.resources)[0].job_recovery["recover_on_exit_codes"] == [3, 5]
        config = yaml.safe_load(open(sys.argv[1]))
        try:
            sky.Task.from_yaml_config({**config, "num_node": 2})
        except ValueError:
            pass
        else:
            sys.exit("it checks nothing")
    """
    of_operators(sandbox, "-c", script, EXAMPLES / "skypilot/task.yaml")


def test_torchx(sandbox):
    """TorchX runs the component on this machine: two agents form a job. The arguments of the script arrive as they are."""
    needs_operators()
    train_stub(sandbox)
    shutil.copy(EXAMPLES / "torchx/component.py", sandbox.work)
    flags = ["--nnodes", "2", "--nproc_per_node", "2", "--port", free_port(), "--script", "train.py"]
    script = "import sys; from torchx.cli.main import main; main(sys.argv[1:])"
    words = ["run", "--wait", "--log", "--scheduler", "local_cwd", "component.py:ragent", *flags, "--", "--folder", "check points"]
    environment = of_node(sandbox)
    run = sandbox.start("-c", script, *words, python=OPERATORS, env=environment).succeeds()
    lines = sorted(re.findall(r"(at \d .*)", run.stderr))
    assert lines == [f"at {rank} 4 {rank // 2} 3 --folder check points" for rank in range(4)], f"{run.stdout}\n{run.stderr}"
