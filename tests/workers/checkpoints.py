"""Trains on a GPU with checkpoints in memory, and prints a number that depends on all steps.

In the first round, the worker with rank 0 is killed after a step. It also says whether CUDA copies to the buffers directly, and how
long a save of 1 GiB takes, compared with a bare copy of the same tensor to pinned memory.
"""

import os
import signal
import sys
import time

import ragent.checkpoint as memory
import torch
from ragent import _memory_client

kill_after = int(sys.argv[1])
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.manual_seed(7 + rank)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Dropout(0.1), torch.nn.Linear(256, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = {"model": model, "optimizer": optimizer}


def tell(text):
    # One write, so that lines of several workers are not mixed.
    os.write(1, f"rank={rank} {text}\n".encode())


step = memory.load(state)
tell(f"restart={restart} begins after={step}")
step = step or 0
while step < 40:
    loss = (model(torch.randn(8, 64, device=device)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if not memory.save(step, state):
        sys.exit("memory is off")
    if step == kill_after and restart == 0 and rank == 0:
        # A checkpoint is known to be whole.
        while memory.newest_whole() is None:
            pass
        os.kill(os.getpid(), signal.SIGKILL)
mappings = _memory_client.client()._mappings
tell(f"direct={all(mapping._registered for mapping in mappings)}")
total = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
tell(f"result={total:.12f}")
large = {"large": torch.rand(1 << 28, device=device), "rng": memory.rng()}
pinned = torch.empty(1 << 28, pin_memory=True)
for attempt in range(3):
    torch.cuda.synchronize()
    begin = time.monotonic()
    pinned.copy_(large["large"])
    torch.cuda.synchronize()
    bare = time.monotonic()
    memory.save(step + 1 + attempt, large)
    # The first ones also make the buffers.
    tell(f"1 GiB: bare copy {bare - begin:.3f} s, save {time.monotonic() - bare:.3f} s")
