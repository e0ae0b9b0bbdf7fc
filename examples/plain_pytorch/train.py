"""Plain PyTorch: DDP, two micro steps an update, a loss over labelled tokens only, and one line that names the data."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from firstbad.agent import batch  # does nothing when the process has no agent

MICRO_STEPS, ROWS, LENGTH, WORDS = 2, 4, 8, 64


def mean_over_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """0/0 when a batch has no label, and its gradient is NaN."""
    mask = labels.flatten() != -100
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--bad-step", type=int, help="the step whose second micro-batch has no label on --bad-rank")
    parser.add_argument("--bad-rank", type=int, default=1)
    parser.add_argument("--save", help="folder for each rank's weights")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(WORDS, 16), nn.LayerNorm(16), nn.Linear(16, WORDS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    random = torch.Generator().manual_seed(rank)
    for step in range(options.steps):
        for micro in range(MICRO_STEPS):
            tokens = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=random)
            inputs, labels = tokens[:, :-1], tokens[:, 1:].clone()
            if (step, micro, rank) == (options.bad_step, 1, options.bad_rank):
                labels.fill_(-100)
            batch(
                step=step,
                sample_ids=[f"{rank}-{step}-{micro}-{row}" for row in range(ROWS)],
                valid_tokens=(labels != -100).sum(),
            )
            last = micro == MICRO_STEPS - 1
            with contextlib.nullcontext() if last else model.no_sync():
                (mean_over_labels(model(inputs), labels) / MICRO_STEPS).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    if options.save:
        torch.save(model.module.state_dict(), f"{options.save}/rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
