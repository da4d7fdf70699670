"""A script that uses no variables of a launcher: it gets its rank as an argument, and meets the others at a file."""

import argparse
import os

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world_size", type=int, required=True)
    parser.add_argument("--init_method", required=True)
    parser.add_argument("--checkpoint_path", required=True)
    args = parser.parse_args()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    dist.init_process_group("gloo", init_method=args.init_method, rank=args.rank, world_size=args.world_size)
    done = torch.load(args.checkpoint_path)["steps"] if os.path.exists(args.checkpoint_path) else 0
    total = torch.tensor([args.rank + 1])
    dist.all_reduce(total)
    os.write(1, f"attempt={attempt} rank={args.rank} sum={total.item()} done={done}\n".encode())
    if args.rank == 0:
        torch.save({"steps": done + 1}, args.checkpoint_path)
    dist.barrier()
    if attempt == "0":
        # An unclean end. The file of this round stays, and the next round must not read it.
        os._exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
