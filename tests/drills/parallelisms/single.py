"""One process without a process group."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from tests.drills import optimizers
from tests.drills.model import VOCABULARY, WIDTH
from tests.drills.script import Script
from torch import nn


class Single(Script):
    """Plain training."""


class SingleAccumulation(Script):
    """Three micro steps an update."""

    micro_steps = 3


class TwoOptimizers(Script):
    """One backward for two optimizers: the blocks by one kind, the rest by SGD."""

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        blocks = list(self.net.blocks.parameters())
        inside = {id(parameter) for parameter in blocks}
        rest: list[nn.Parameter] = [p for p in self.net.parameters() if id(p) not in inside]
        return list(itertools.starmap(optimizers.make, [(self.cell.optimizer, blocks), ("sgd", rest)]))


class SparseGradients(Script):
    """The embedding has sparse gradients, and SparseAdam for them."""

    def make_net(self) -> Any:
        net = super().make_net()
        net.tokens = nn.Embedding(VOCABULARY, WIDTH, sparse=True)
        return net

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        embedding = self.net.tokens.weight
        rest = [parameter for parameter in self.net.parameters() if parameter is not embedding]
        return [optimizers.make(self.cell.optimizer, rest), torch.optim.SparseAdam([embedding], lr=1e-3)]


SCRIPTS: dict[str, type[Script]] = {
    "single": Single,
    "single_accumulation": SingleAccumulation,
    "single_sparse": SparseGradients,
    "single_two_optimizers": TwoOptimizers,
}
