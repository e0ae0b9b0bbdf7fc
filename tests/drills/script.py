"""The training script of a parallelism, as a user would write it; the injector is called where faults happen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from tests.drills import optimizers
from tests.drills.batch import Batch, mean_loss
from tests.drills.cell import Cell
from tests.drills.injector import Injector
from tests.drills.model import Block, Mlp, Transformer
from tests.drills.precision import PRECISIONS
from torch import nn

from firstbad.schema import Stage


class Script:
    """
    Builds model and optimizer and takes the steps of one rank. A parallelism overrides what it does differently.

    `net` is the model whose names the ledger uses, `model` what the loop calls.
    """

    micro_steps = 1
    reduces = False
    """Gradients are reduced over ranks before the update."""
    recovers = True
    """Steps after the bad one are good again."""

    def __init__(self, cell: Cell, rank: int, injector: Injector) -> None:
        self.cell, self.rank, self.injector = cell, rank, injector
        self.precision = PRECISIONS[cell.precision]
        self.block = "1"
        """The block whose operators and weights the injector takes."""
        self.scaler = self.precision.scaler()
        self.net: Any = self.make_net()
        self.model: Any = self.wrap(self.net)
        self.optimizers = self.make_optimizers()

    # -- what a parallelism overrides

    def make_net(self) -> Any:
        """The model before it is wrapped."""
        return Transformer(linear=self.precision.linear).to(self.precision.dtype)

    def wrap(self, net: nn.Module) -> Any:
        """The model that the loop calls."""
        return net

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers, in the order in which they step."""
        return [optimizers.make(self.cell.optimizer, self.parameters())]

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the optimizer gets."""
        return self.model.parameters()

    def reader(self) -> int:
        """The data-parallel rank whose batches this rank reads."""
        return self.rank

    def readers(self) -> frozenset[int]:
        """The ranks that read the same batches."""
        return frozenset({self.rank})

    def mlp(self, block: Block) -> tuple[Mlp, str]:
        """The MLP of a block that faults go into, and its name there."""
        return block.mlp, "mlp"

    def weight(self, block: Block) -> tuple[str, nn.Parameter]:
        """The weight of a block that faults go into, and its name there."""
        return "mlp.w1.weight", block.mlp.w1.weight

    def quiet(self, micro_step: int) -> Any:
        """The context of a micro step: no_sync, where the script accumulates without reducing."""
        del micro_step
        return contextlib.nullcontext()

    def accumulate(self, step: int) -> None:
        """All forwards and backwards of one update."""
        for micro_step in range(self.micro_steps):
            batch = self.batch(step, micro_step)
            with self.quiet(micro_step), self.injector.operators(self, step, micro_step):
                with self.precision.context():
                    logits = self.model(batch.tokens, batch.features)
                    loss = mean_loss(logits, batch.targets, batch.weights) / self.micro_steps
                self.backward(loss)

    # -- the loop

    def batch(self, step: int, micro_step: int) -> Batch:
        """The data of a micro step."""
        batch = Batch.make(step, micro_step, self.reader(), self.precision.dtype)
        return self.injector.batch(batch, step, micro_step, self.readers())

    def backward(self, loss: torch.Tensor) -> None:
        """Backward, of the scaled loss where there is a scaler."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def run(self, steps: int, leave_out: int | None = None) -> None:
        """Train. `leave_out` is the update that a run without a guard leaves out by hand."""
        for step in range(steps):
            self.injector.before_step(self, step)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            self.accumulate(step)
            self.injector.before_update(self, step)
            if step == leave_out:
                self.leave_out()
            else:
                self.update()
            self.injector.after_update(self)

    def update(self) -> None:
        """The optimizers' steps."""
        if self.scaler is None:
            for optimizer in self.optimizers:
                optimizer.step()
            return
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()

    def leave_out(self) -> None:
        """What is left of a skipped update: an overflow makes the loss scale back off, a data fault does not."""
        if self.scaler is not None and self.cell.stage in (Stage.GRAD, Stage.GRAD_REDUCED):
            # The armed run meets the fault at the scale that the injector set.
            scale = 2.0**40 if self.cell.fault == "scale" else self.scaler.get_scale()
            self.scaler.update(scale * self.scaler.get_backoff_factor())
            self.scaler._get_growth_tracker()
            assert self.scaler._growth_tracker is not None
            self.scaler._growth_tracker.zero_()
