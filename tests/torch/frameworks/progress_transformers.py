"""Trains with the Trainer of transformers and its bars.

It loads weights, evaluates in more batches than the training has steps, fails, and resumes from a checkpoint.
"""

import os

import torch
import transformers
from stops import stop
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS = 12


class Stops(TrainerCallback):
    """Stops rank 0, after the callback that draws the bars."""

    def __init__(self, resumed):
        self.resumed = resumed
        self.predictions = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.predictions = 0
        if state.is_world_process_zero and state.global_step == (10 if self.resumed else 5):
            stop("training", state.global_step, STEPS)
        if not self.resumed and state.global_step == 9:
            raise ValueError("no such batch")

    def on_prediction_step(self, args, state, control, **kwargs):
        self.predictions += 1
        if state.is_world_process_zero and state.global_step >= 8 and self.predictions == 3:
            stop("evaluation", state.global_step, STEPS)

    def on_train_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            stop("end", state.global_step, STEPS)


def main():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    data = [
        {"input_ids": torch.randint(0, 32, (8,)), "labels": torch.tensor(index % 2)} for index in range(64)
    ]
    scratch, rank = os.environ["SCRATCH"], os.environ["RANK"]
    weights, checkpoints = f"{scratch}/weights{rank}", f"{scratch}/checkpoints"
    BertForSequenceClassification(config).save_pretrained(weights)
    model = BertForSequenceClassification.from_pretrained(weights)
    arguments = TrainingArguments(
        output_dir=checkpoints,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        report_to=[],
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=8,
    )
    # As the example scripts of transformers do.
    if arguments.should_log:
        transformers.utils.logging.set_verbosity_info()
    checkpoint = get_last_checkpoint(checkpoints) if os.path.isdir(checkpoints) else None
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
    trainer.add_callback(Stops(checkpoint is not None))
    trainer.train(resume_from_checkpoint=checkpoint)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
