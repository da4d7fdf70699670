"""Trains with DeepSpeed, which prints every fifth step, after a bar of every process."""

import deepspeed
import torch
from stops import stop
from tqdm import tqdm

# This operation for processes of one machine would have to be compiled: a minute, and a C++ compiler.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

CONFIG = {
    "train_batch_size": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "steps_per_print": 5,
    "log_level": "info",
    "wall_clock_breakdown": True,
}


def main():
    for _ in tqdm(range(28)):
        pass
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(config=CONFIG, model=model, model_parameters=model.parameters())
    for _ in range(15):
        inputs, targets = torch.randn(2, 4), torch.randn(2, 1)
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
        if engine.global_rank == 0 and engine.global_steps % 5 == 0:
            stop("training" if engine.global_steps < 15 else "end", engine.global_steps, None)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
