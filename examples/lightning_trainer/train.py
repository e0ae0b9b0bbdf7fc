"""
Lightning Trainer, DDP on the CPU, with accumulation, clipping and a learning rate schedule.

Without --callback the script knows nothing of firstbad; with it, the ledger also has the Trainer's step and the lines.
"""

import argparse
import os
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

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
        return {"sample_ids": index, "inputs": self.tokens[index, :-1], "labels": labels}


def mean_over_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """0/0 when a batch has no label, and its gradient is NaN."""
    mask = labels.flatten() != -100
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum()


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(WORDS, 16), nn.LayerNorm(16), nn.Linear(16, WORDS))

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        del batch_idx
        return mean_over_labels(self.net(batch["inputs"]), batch["labels"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--bad-step", type=int, help="the step whose first micro-batch has no label on --bad-rank")
    parser.add_argument("--bad-rank", type=int, default=1)
    parser.add_argument("--callback", action="store_true", help="use FirstbadCallback")
    parser.add_argument("--save", help="folder for each rank's weights")
    options = parser.parse_args()

    world = int(os.environ.get("WORLD_SIZE", "1"))
    unlabelled = range(0)
    if options.bad_step is not None:  # lines go to the ranks in turn
        first = options.bad_step * MICRO_STEPS * ROWS * world + options.bad_rank
        unlabelled = range(first, first + ROWS * world, world)
    callbacks = []
    if options.callback:
        from firstbad.agent.integrations.lightning import FirstbadCallback

        callbacks.append(FirstbadCallback())
    torch.manual_seed(0)
    model = Model()
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=world,
        max_steps=options.steps,
        accumulate_grad_batches=MICRO_STEPS,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    lines = Lines(options.steps * MICRO_STEPS * ROWS * world, unlabelled)
    sampler = DistributedSampler(lines, world, int(os.environ.get("RANK", "0")), shuffle=False)
    trainer.fit(model, DataLoader(lines, batch_size=ROWS, sampler=sampler))
    if options.save:
        torch.save(model.state_dict(), f"{options.save}/rank{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
