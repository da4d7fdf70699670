"""Trains two epochs with lightning and the bar that the argument names, with a sanity check and validations."""

import os
import sys

import lightning
import torch
from lightning.pytorch.callbacks import Callback, RichProgressBar, TQDMProgressBar
from stops import stop
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def loss(self, batch):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def training_step(self, batch, _index):
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _index):
        self.log("val_loss", self.loss(batch), prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Stops(Callback):
    """Stops rank 0, after the callback that draws the bars. These do not show the number of all steps."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.is_global_zero and trainer.global_step in (5, 11):
            stop("training", trainer.global_step, None)

    def on_validation_batch_end(self, trainer, module, outputs, batch, index, *_):
        if trainer.is_global_zero and (trainer.global_step, index) == (8, 2):
            stop("validation", trainer.global_step, None)

    def on_train_end(self, trainer, *_):
        if trainer.is_global_zero:
            stop("end", trainer.global_step, None)


def main():
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    bar = {"rich": RichProgressBar, "tqdm": TQDMProgressBar}[sys.argv[1]]()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        val_check_interval=4,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        callbacks=[bar, Stops()],
    )
    trainer.fit(Line(), DataLoader(data, batch_size=2), DataLoader(data, batch_size=2))


if __name__ == "__main__":
    main()
