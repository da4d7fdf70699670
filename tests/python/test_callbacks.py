"""The callbacks of `ragent.integrations` with the real frameworks, and the example with accelerate.

`make test-frameworks` runs those that `FRAMEWORKS` names, in the environment of frameworks.
"""

import json
import os

import pytest
from support import REPOSITORY
from test_notices_api import NOTICE, Ranks

PYTHON = REPOSITORY / ".venvs/frameworks/bin/python"


def needs_framework(name):
    """Skips the test if it is not asked for."""
    if name not in os.environ.get("FRAMEWORKS", "").split():
        pytest.skip(f"`make test-frameworks` runs it: FRAMEWORKS does not contain {name}")
    assert PYTHON.exists(), f"{PYTHON} is missing: `scripts/setup-venv.sh frameworks` creates it"


def answer(ranks, notice):
    """Waits for the first report of all ranks that answers a notice, and returns its step."""
    steps = set()
    for agent in ranks.agents:
        report = {}
        while report.get("X_RAGENT_NOTICE") != str(notice):
            report = dict(line.split("=") for line in agent.next().split("\n"))
        assert int(report["X_RAGENT_SAVE_MS"]) >= 0
        steps.add(int(report["X_RAGENT_SAVED"]))
    assert len(steps) == 1, steps
    return steps.pop()


TRANSFORMERS = """
import transformers
from ragent.integrations.transformers import NoticeCallback
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

class Steps(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        say("begins after", state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 20:
            say("step 20")

def train():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    data = [{"input_ids": torch.randint(0, 32, (8,)), "labels": torch.tensor(index % 2)} for index in range(64)]
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        max_steps=int(os.environ["STEPS"]),
        per_device_train_batch_size=2,
        report_to=[],
        disable_tqdm=True,
        **json.loads(os.environ["OPTIONS"]),
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=data,
        eval_dataset=data[:2],
        callbacks=[NoticeCallback(every=3), Steps()],
    )
    trainer.train(resume_from_checkpoint=os.path.isdir("out") and bool(os.listdir("out")))
    say("trained", trainer.state.global_step)
"""

LIGHTNING = """
import importlib
package = importlib.import_module(os.environ["PACKAGE"])
ModelCheckpoint = importlib.import_module(os.environ["PACKAGE"] + ".callbacks").ModelCheckpoint
from ragent.integrations.lightning import NoticeCallback
from torch.utils.data import DataLoader, TensorDataset

class Line(package.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).mean()

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_start(self):
        say("begins after", self.trainer.global_step)

    def on_train_batch_end(self, outputs, batch, index):
        # 16 batches an epoch: none is left out or trained again.
        assert self.trainer.global_step - 1 == self.trainer.current_epoch * 16 + index, (self.trainer.current_epoch, index)
        if self.trainer.global_step == 20:
            say("step 20")

def train():
    data = TensorDataset(torch.randn(64, 4))
    trainer = package.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=int(os.environ["STEPS"]),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[NoticeCallback(every=3), ModelCheckpoint(dirpath="out", save_last=True)],
    )
    trainer.fit(Line(), DataLoader(data, batch_size=2), DataLoader(data, batch_size=2), ckpt_path="last")
    say("trained", trainer.global_step)
"""

TAIL = """
try:
    train()
except SystemExit as end:
    say("ends with", repr(end.code))
# The models are gone. A model that outlives its process group sometimes aborts the interpreter at its end.
dist.destroy_process_group()
"""


def start(sandbox, script, steps, **variables):
    environment = {
        **{"STEPS": str(steps), "HF_HUB_OFFLINE": "1", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"},
        **variables,
    }
    return Ranks(sandbox, 2, script + TAIL, environment, python=PYTHON)


def saves_and_goes_on(sandbox, script, file, **variables):
    """A notice of the kind `save` is answered, and the training goes on. `leave` ends the script, which then resumes."""
    with start(sandbox, script, 1_000_000, **variables) as ranks:
        ranks.runs[0].prints("begins after 0")
        ranks.runs[0].prints("step 20")
        ranks.agents[1].give({**NOTICE, "notice": 1, "kind": "save"})
        first = answer(ranks, 1)
        assert first % 3 == 0
        ranks.agents[0].give({**NOTICE, "notice": 2, "kind": "leave"})
        second = answer(ranks, 2)
        assert second > first and second % 3 == 0
        ranks.succeed()
        for run in ranks.runs:
            assert "ends with 0\n" in run.stdout and "trained" not in run.stdout
        assert (sandbox.work / file.format(second)).exists()
    with start(sandbox, script, second + 20, **variables) as ranks:
        ranks.succeed()
        for run, agent in zip(ranks.runs, ranks.agents):
            assert f"begins after {second}\n" in run.stdout and f"trained {second + 20}\n" in run.stdout
            assert not any("NOTICE" in report for report in agent.rest())


@pytest.mark.parametrize(
    "options",
    [
        '{"save_strategy": "no"}',
        '{"save_strategy": "epoch", "save_total_limit": 1}',
        '{"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "greater_is_better": true}',
    ],
)
def test_transformers(sandbox, options):
    """The Trainer of transformers saves at the same step on all ranks, whatever its own strategy is."""
    needs_framework("transformers")
    saves_and_goes_on(sandbox, TRANSFORMERS, "out/checkpoint-{}/optimizer.pt", OPTIONS=options)


def test_transformers_reports(sandbox):
    """Each checkpoint of the Trainer is reported, also without a notice. With its time, to which evaluations do not count."""
    needs_framework("transformers")
    options = '{"save_strategy": "steps", "save_steps": 8, "eval_strategy": "steps", "eval_steps": 8}'
    with start(sandbox, TRANSFORMERS, 20, OPTIONS=options) as ranks:
        ranks.succeed()
        for agent in ranks.agents:
            reports = [report.split("\n") for report in agent.rest()]
            assert [report[0] for report in reports] == [f"X_RAGENT_SAVED={step}" for step in (8, 16, 20)]
            assert all(len(report) == 2 and report[1].startswith("X_RAGENT_SAVE_MS=") for report in reports)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(sandbox, package):
    """The Trainer of Lightning saves at the same step on all ranks. `ckpt_path="last"` finds the checkpoint, and trains each batch."""
    needs_framework("lightning")
    saves_and_goes_on(sandbox, LIGHTNING, "out/last-notice.ckpt", PACKAGE=package)


def test_lightning_reports(sandbox):
    """Each checkpoint of Lightning from which a training can be resumed is reported, with its time."""
    needs_framework("lightning")
    with start(sandbox, LIGHTNING, 40, PACKAGE="lightning.pytorch") as ranks:
        ranks.succeed()
        for agent in ranks.agents:
            reports = [report.split("\n") for report in agent.rest()]
            # Each is saved twice: under its name, and as the last one.
            assert {report[0] for report in reports} == {f"X_RAGENT_SAVED={step}" for step in (16, 32, 40)}
            assert all(len(report) == 2 and report[1].startswith("X_RAGENT_SAVE_MS=") for report in reports)


def test_lightnings_threads_and_batches(sandbox):
    """A checkpoint that another thread writes is reported when it is on storage. It is saved after a step, not between its batches."""
    needs_framework("lightning")
    for index in (0, 2):
        sandbox.write(f"given{index}", json.dumps({**NOTICE, "kind": "save", "notice": index + 1}))
    script = """
    import threading
    import lightning
    from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
    from ragent.integrations import lightning as integration

    reported, report = threading.Event(), integration._saves.saved

    def saved(step, **options):
        say("reported", step, os.path.exists("out/last-notice.ckpt"))
        reported.set()
        report(step, **options)

    integration._saves.saved = saved

    class Slow(TorchCheckpointIO):
        def save_checkpoint(self, *args, **kwargs):
            reported.wait(0.5)
            super().save_checkpoint(*args, **kwargs)

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            if self.trainer.current_epoch == 0 and index in (0, 2):
                # The first of two batches of a step.
                os.rename(f"given{index}", os.environ["RAGENT_NOTICE_FILE"])
            return self.layer(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[AsyncCheckpointIO(Slow())],
        callbacks=[integration.NoticeCallback(path="out/last-notice.ckpt"), lightning.pytorch.callbacks.ModelCheckpoint(dirpath="out")],
    )
    trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(4, 4)))
    say("trained", trainer.global_step, "save_checkpoint" in vars(trainer))
    """
    with Ranks(sandbox, 1, script, {"WORLD_SIZE": "1"}, python=PYTHON) as ranks:
        ranks.succeed()
        assert ranks.runs[0].stdout == "reported 1 True\nreported 2 True\ntrained 4 False\n"


@pytest.mark.usefixtures("needs_torch")
def test_accelerate_example(sandbox):
    """The example saves at a notice, and resumes there. It trains the same as without an interruption."""
    needs_framework("accelerate")
    path = REPOSITORY / "examples/accelerate/train.py"

    def train(folder, steps):
        words = ["--folder", folder, "--steps", steps, "--save-every", 100_000]
        environment = {"MASTER_ADDR": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
        return Ranks(sandbox, 2, path, environment, words=words)

    with train("interrupted", 1_000_000) as ranks:
        ranks.agents[1].give({**NOTICE, "kind": "save"})
        reports = (ranks.agents[0].next().split("\n") for _ in range(1_000_000))
        report = next(report for report in reports if report[0].startswith("X_RAGENT_SAVED="))
        assert report[1] == "X_RAGENT_SAVED_WHOLE=1" and report[3] == "X_RAGENT_NOTICE=3", report
        step = int(report[0].partition("=")[2])
        for run in ranks.runs:
            run.process.kill()
            run.finish()
    ends = []
    for folder in ("interrupted", "whole"):
        with train(folder, step + 100) as ranks:
            ranks.succeed()
            ends.append(ranks.runs[0].stdout.splitlines())
    assert ends[0] == [f"resumed after step {step}", *ends[1]]
    assert ends[1][0].startswith(f"trained {step + 100} steps")
