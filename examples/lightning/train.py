"""Trains a tiny model with the Trainer of Lightning. After a failure it goes on from the newest checkpoint in the folder.

    ragent --nproc-per-node 2 --max-restarts 10 --notice 60 examples/lightning/train.py --folder checkpoints

The folder must be the same on all nodes.
"""

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from ragent.integrations.lightning import NoticeCallback
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def on_train_start(self):
        if self.trainer.global_step:
            self.trainer.print(f"resumed after step {self.trainer.global_step}", flush=True)

    def training_step(self, batch, index):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()
    lightning.seed_everything(0)
    inputs = torch.randn(4096, 8)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    trainer = lightning.Trainer(
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=args.steps,
        # The first one reports each checkpoint of the second, and saves another one when ragent asks for it.
        callbacks=[
            NoticeCallback(),
            ModelCheckpoint(dirpath=args.folder, save_last=True, every_n_train_steps=args.save_every),
        ],
        logger=False,
    )
    # The newest checkpoint in the folder, also that of the callback. None at the first start.
    trainer.fit(Line(), DataLoader(data, batch_size=8), ckpt_path="last")
    trainer.print(f"trained {trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
