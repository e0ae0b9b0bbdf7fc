"""A GAN: two models, two optimizers, and an update of each in turn; every update is a step of its own."""

from __future__ import annotations

from typing import Any

import torch
from tests.drills import optimizers
from tests.drills.batch import Batch
from tests.drills.model import FEATURES, WIDTH, Block
from tests.drills.script import Script
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation
from torch.nn.parallel import DistributedDataParallel


class Player(nn.Module):
    """Generator or discriminator: features in, a number for each position or features out."""

    def __init__(self, linear: type[nn.Linear], outputs: int) -> None:
        super().__init__()
        self.inlet, self.outlet = linear(FEATURES, WIDTH), linear(WIDTH, outputs)
        self.blocks = nn.ModuleDict({"0": Block(linear), "1": Block(linear)})
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = self.inlet(features)
        for block in self.blocks.values():
            x = block(x)
        return self.outlet(self.norm(x))


class Adversaries(Script):
    """
    Even updates are the discriminator's, odd ones the generator's. Faults go into the discriminator, which both need:
    in a generator's update its operators are only on the way.
    """

    def make_net(self) -> Any:
        return Player(self.precision.linear, 1).to(self.precision.dtype)

    def wrap(self, net: Any) -> Any:
        self.other: Any = Player(self.precision.linear, FEATURES).to(self.precision.dtype)
        if not self.reduces:
            return net
        self.other = DistributedDataParallel(self.other)
        return DistributedDataParallel(net)

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        kind = self.cell.optimizer
        return [optimizers.make(kind, self.model.parameters()), optimizers.make(kind, self.other.parameters())]

    def accumulate(self, step: int) -> None:
        batch = self.batch(step, 0)
        with self.injector.operators(self, step, 0):
            (self._judging if step % 2 == 0 else self._faking)(batch)

    def _judging(self, batch: Batch) -> None:
        with torch.no_grad():
            fake = self.other(torch.randn_like(batch.features))
        answers = self.model(torch.cat([batch.features, fake]))
        truth = torch.cat([torch.ones_like(answers[: len(fake)]), torch.zeros_like(answers[: len(fake)])])
        self.backward(self._loss(answers, truth, batch))

    def _faking(self, batch: Batch) -> None:
        answers = self.model(self.other(batch.features))
        self.backward(self._loss(answers, torch.ones_like(answers), batch))

    def _loss(self, answers: torch.Tensor, truth: torch.Tensor, batch: Batch) -> torch.Tensor:
        losses = F.binary_cross_entropy_with_logits(answers, truth, reduction="none").mean((-1, -2))
        weights = batch.weights.mean(-1).repeat(len(losses) // len(batch.weights)).to(losses.dtype)
        return (losses * weights).sum() / weights.sum()

    def update(self) -> None:
        self.optimizers[self._turn].step()

    def run(self, steps: int, leave_out: int | None = None) -> None:
        """Train; the two take turns."""
        for step in range(steps):
            self._turn = step % 2
            self.injector.before_step(self, step)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            self.accumulate(step)
            self.injector.before_update(self, step)
            if step != leave_out:
                self.update()
            self.injector.after_update(self)


class DdpAdversaries(Adversaries):
    """Each of the two in a DDP of its own."""

    reduces = True


SCRIPTS: dict[str, type[Script]] = {"single_gan": Adversaries, "ddp_gan": DdpAdversaries}
