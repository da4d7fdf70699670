"""A few steps with DeepSpeed. Prints its rank and the world size.

A script for DeepSpeed's own launcher: it reads --local_rank and --deepspeed_config.
"""

import argparse
import os

import deepspeed
import torch

# This operation for processes of one machine would have to be compiled: a minute, and a C++ compiler.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    steps = 0
    for _ in range(4):
        inputs, targets = torch.randn(2, 4), torch.randn(2, 1)
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        steps += 1
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    assert args.local_rank == int(os.environ["LOCAL_RANK"]), args
    assert engine.train_batch_size() == 4, engine.train_batch_size()
    if os.environ["FAILS"] == str(rank):
        raise ValueError("no such batch")
    os.write(1, f"deepspeed rank={rank} world_size={size} steps={steps} loss={loss.item():.3f}\n".encode())
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
