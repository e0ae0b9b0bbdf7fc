"""
Lightning Fabric: an own loop over Fabric's model, optimizer and loader, with accumulation and clipping.

Without --callback the script knows nothing of firstbad; with it, the ledger also has the loop's step and the lines.
"""

import argparse
import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

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
        from firstbad.agent.integrations.fabric import FirstbadCallback

        callbacks.append(FirstbadCallback())
    fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp", callbacks=callbacks)
    fabric.launch()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.LayerNorm(16), nn.Linear(16, WORDS))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    lines = Lines(options.steps * MICRO_STEPS * ROWS * world, unlabelled)
    loader = fabric.setup_dataloaders(DataLoader(lines, batch_size=ROWS))
    fabric.call("on_train_start")
    for index, batch in enumerate(loader):
        step, micro = divmod(index, MICRO_STEPS)
        fabric.call("on_train_batch_start", batch, index, step=step)
        last = micro == MICRO_STEPS - 1
        with fabric.no_backward_sync(model, enabled=not last):
            fabric.backward(mean_over_labels(model(batch["inputs"]), batch["labels"]) / MICRO_STEPS)
        if last:
            # Fabric raises at a norm that is not finite, which ends the run before the step that would be skipped.
            fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
            optimizer.step()
            optimizer.zero_grad()
    if options.save:
        torch.save(model.module.state_dict(), f"{options.save}/rank{fabric.global_rank}.pt")


if __name__ == "__main__":
    main()
