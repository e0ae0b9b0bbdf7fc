"""
A pretraining loop in the style of torchtitan, in plain PyTorch: FSDP2, accumulation over the global batch, a global
clip, and a Trainer that is Stateful, so that its step and data position go into the checkpoint with the shards.
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

from firstbad.agent import batch

WORDS, WIDTH, ROWS, LENGTH = 64, 16, 2, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.silu(self.up(self.norm(x))))


def mean_over_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """0/0 when a batch has no label, and its gradient is NaN."""
    mask = labels.flatten() != -100
    losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum()


class Trainer(Stateful):
    """One rank of the run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rank, self.step, self.micro_batches = options, dist.get_rank(), 0, 0
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), nn.Linear(WIDTH, WORDS))
        for block in self.model[1:3]:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step, "micro_batches": self.micro_batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step, self.micro_batches = state["step"], state["micro_batches"]

    def data(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            random = torch.Generator().manual_seed(1000 * self.rank + self.micro_batches)
            tokens = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=random)
            labels = tokens[:, 1:].clone()
            if (self.step, self.rank) == (self.options.bad_step, self.options.bad_rank):
                labels.fill_(-100)
            batch(
                step=self.step,
                shard_id=f"shard-{self.rank}",
                sample_ids=[ROWS * self.micro_batches + row for row in range(ROWS)],
                valid_tokens=(labels != -100).sum(),
            )
            self.micro_batches += 1
            yield tokens[:, :-1], labels

    def train_step(self, data: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.optimizer.zero_grad()
        for micro in range(self.options.micro_steps):
            inputs, labels = next(data)
            self.model.set_requires_gradient_sync(micro == self.options.micro_steps - 1)
            loss = mean_over_labels(self.model(inputs).float(), labels)
            (loss / self.options.micro_steps).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def train(self) -> None:
        data = self.data()
        while self.step < self.options.steps:
            self.train_step(data)
            self.step += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--micro-steps", type=int, default=2)
    parser.add_argument("--bad-step", type=int, help="the step in which --bad-rank's batches have no label")
    parser.add_argument("--bad-rank", type=int, default=1)
    parser.add_argument("--checkpoint", help="folder to go on from, when it exists, and to write at the end")
    parser.add_argument("--save", help="folder for the whole weights as each rank sees them")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    trainer = Trainer(options)
    if options.checkpoint and os.path.exists(options.checkpoint):
        dcp.load({"trainer": trainer}, checkpoint_id=options.checkpoint)
    trainer.train()
    if options.checkpoint:
        dcp.save({"trainer": trainer}, checkpoint_id=options.checkpoint)
    if options.save:
        whole = {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in trainer.model.state_dict().items()}
        torch.save(whole, f"{options.save}/rank{trainer.rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
