"""A few steps with lightning. Prints its rank and the world size."""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _index):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), DataLoader(data, batch_size=2))
    rank, size, steps = trainer.global_rank, trainer.world_size, trainer.global_step
    if os.environ["FAILS"] == str(rank):
        raise ValueError("no such batch")
    os.write(1, f"lightning rank={rank} world_size={size} steps={steps}\n".encode())


if __name__ == "__main__":
    main()
