"""A few steps with accelerate. Prints its rank and the world size."""

import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2))
    steps = 0
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    rank, size = accelerator.process_index, accelerator.num_processes
    if os.environ["FAILS"] == str(rank):
        raise ValueError("no such batch")
    os.write(1, f"accelerate rank={rank} world_size={size} steps={steps} loss={loss.item():.3f}\n".encode())
    accelerator.wait_for_everyone()
    # A model that outlives its process group sometimes aborts the interpreter at its end.
    del model, optimizer, loader, loss
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
