"""Trains a tiny model with the Trainer of transformers. After a failure it goes on from the newest checkpoint in the folder.

    ragent --nproc-per-node 2 --max-restarts 10 --notice 60 examples/transformers/train.py --folder checkpoints

The folder must be the same on all nodes.
"""

import argparse
import os

import torch
from ragent.integrations.transformers import NoticeCallback
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    data = [{"input_ids": torch.randint(0, 32, (8,)), "labels": torch.tensor(index % 2)} for index in range(512)]
    arguments = TrainingArguments(
        output_dir=args.folder,
        max_steps=args.steps,
        save_steps=args.save_every,
        # A worker that is killed may leave half a checkpoint. The one before it must still be there.
        save_total_limit=2,
        per_device_train_batch_size=2,
        report_to=[],
    )
    # Reports each checkpoint, and saves another one when ragent asks for it.
    callbacks = [NoticeCallback()]
    trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=data, callbacks=callbacks)
    checkpoint = newest(args.folder)
    if checkpoint and arguments.process_index == 0:
        print(f"resumed after step {checkpoint.rpartition('-')[2]}", flush=True)
    trainer.train(resume_from_checkpoint=checkpoint)
    if arguments.process_index == 0:
        print(f"trained {trainer.state.global_step} steps", flush=True)
    # Threads of gloo that are alive when the interpreter ends sometimes abort it.
    torch.distributed.destroy_process_group()


def newest(folder):
    """Returns the newest checkpoint, or `None`. After a restart, it is one that all ranks have reported as saved."""
    os.makedirs(folder, exist_ok=True)
    saved = os.environ.get("RAGENT_SAVED_STEP")
    return os.path.join(folder, f"checkpoint-{saved}") if saved else get_last_checkpoint(folder)


if __name__ == "__main__":
    main()
