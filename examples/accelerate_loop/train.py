"""Accelerate: its own loop with accumulate(), clip and scheduler. It has no callbacks; one line names the data."""

import argparse
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from firstbad.agent import batch

MICRO_STEPS, ROWS, LENGTH, WORDS = 2, 4, 8, 64


class Lines(Dataset):
    """Lines of random tokens; those in `unlabelled` are prompt only and have no label."""

    def __init__(self, count: int, unlabelled: range) -> None:
        self.tokens = torch.randint(WORDS, (count, LENGTH + 1), generator=torch.Generator().manual_seed(0))
        self.unlabelled = unlabelled

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, object]:
        labels = self.tokens[index, 1:]
        if index in self.unlabelled:
            labels = torch.full_like(labels, -100)
        return {"id": index, "inputs": self.tokens[index, :-1], "labels": labels}


def mean_over_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """0/0 when a batch has no label, and its gradient is NaN."""
    mask = labels.flatten() != -100
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--bad-step", type=int, help="the step whose first micro-batch has no label on --bad-rank")
    parser.add_argument("--bad-rank", type=int, default=1)
    parser.add_argument("--save", help="folder for each rank's weights")
    options = parser.parse_args()

    world = int(os.environ.get("WORLD_SIZE", "1"))
    unlabelled = range(0)
    if options.bad_step is not None:  # whole batches go to the ranks in turn
        first = (options.bad_step * MICRO_STEPS * world + options.bad_rank) * ROWS
        unlabelled = range(first, first + ROWS)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_STEPS)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.LayerNorm(16), nn.Linear(16, WORDS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, options.steps * world)
    loader = DataLoader(Lines(options.steps * MICRO_STEPS * ROWS * world, unlabelled), batch_size=ROWS)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    step = 0
    for rows in loader:
        batch(step=step, sample_ids=rows["id"], valid_tokens=(rows["labels"] != -100).sum())
        with accelerator.accumulate(model):
            accelerator.backward(mean_over_labels(model(rows["inputs"]), rows["labels"]))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                step += 1
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    if options.save:
        weights = accelerator.unwrap_model(model).state_dict()
        torch.save(weights, f"{options.save}/rank{accelerator.process_index}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
