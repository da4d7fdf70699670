"""Trains with accelerate and the bars of its examples, which the main process draws, after a bar of every process."""


import torch
from accelerate import Accelerator
from accelerate.utils import tqdm
from stops import stop
from torch.utils.data import DataLoader, TensorDataset

STEPS = 16


def main():
    accelerator = Accelerator(cpu=True)
    for _ in tqdm(range(28), main_process_only=False):
        pass
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    model, optimizer, loader, evaluation = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=2), DataLoader(data, batch_size=1)
    )
    progress, steps = tqdm(range(STEPS)), 0
    for _epoch in range(2):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.update(1)
            progress.set_postfix(step_loss=loss.item())
            steps += 1
            if accelerator.is_main_process and steps in (5, 11):
                stop("training", steps, STEPS)
        for index, (inputs, targets) in enumerate(tqdm(evaluation, leave=False)):
            with torch.no_grad():
                accelerator.gather_for_metrics((model(inputs), targets))
            if accelerator.is_main_process and (steps, index) == (8, 5):
                stop("evaluation", steps, STEPS)
    progress.close()
    if accelerator.is_main_process:
        stop("end", steps, STEPS)
    accelerator.wait_for_everyone()
    # A model that outlives its process group sometimes aborts the interpreter at its end.
    del model, optimizer, loader, evaluation, loss
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
