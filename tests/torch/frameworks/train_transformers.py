"""A few steps with the Trainer of transformers. Prints its rank and the world size."""

import os

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


def main():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    data = [
        {"input_ids": torch.randint(0, 32, (8,)), "labels": torch.tensor(index % 2)} for index in range(16)
    ]
    arguments = TrainingArguments(
        output_dir=os.path.join(os.environ["TMPDIR"], "out"),
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=data)
    trainer.train()
    rank, size, steps = arguments.process_index, arguments.world_size, trainer.state.global_step
    if os.environ["FAILS"] == str(rank):
        raise ValueError("no such batch")
    os.write(1, f"transformers rank={rank} world_size={size} steps={steps}\n".encode())
    # Threads of gloo that are alive when the interpreter ends sometimes abort it.
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
