"""What not to write: a rank that decides alone what to do about its own NaN. README.md beside it says what happens."""

import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH = 4, 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--bad-step", type=int, default=3)
    parser.add_argument("--bad-rank", type=int, default=1)
    parser.add_argument("--before-backward", action="store_true", help="look at the loss before the backward")
    options = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=10))  # half an hour, if you do not say
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    random = torch.Generator().manual_seed(rank)
    for step in range(options.steps):
        x, mask = torch.randn(ROWS, WIDTH, generator=random), torch.ones(ROWS, 1)
        if (step, rank) == (options.bad_step, options.bad_rank):
            mask.zero_()
        optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
        loss = (model(x).square() * mask).sum() / mask.sum()
        if options.before_backward and torch.isnan(loss):
            continue  # the others are in a reduction that this rank will enter with the next step's gradients
        loss.backward()
        if torch.isnan(loss):
            optimizer.zero_grad()
            continue  # the others apply what this rank leaves out
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} weights {sum(float(p.detach().sum()) for p in model.parameters()):.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
