"""The data of a micro step: the same in every run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tests.drills.model import FEATURES, LENGTH, VOCABULARY
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation

SAMPLES = 2


@dataclass(slots=True)
class Batch:
    """Tokens and features go into the model; targets and the weight of each into the loss."""

    tokens: torch.Tensor
    features: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def make(cls, step: int, micro_step: int, reader: int, dtype: torch.dtype) -> Batch:
        """The batch that `reader` (a data-parallel rank) gets."""
        generator = torch.Generator().manual_seed(1 + step * 1000 + micro_step * 100 + reader)
        shape = (SAMPLES, LENGTH)
        return cls(
            tokens=torch.randint(VOCABULARY, shape, generator=generator),
            features=torch.randn(*shape, FEATURES, generator=generator).to(dtype),
            targets=torch.randint(VOCABULARY, shape, generator=generator),
            weights=torch.rand(*shape, generator=generator) + 0.5,
        )

    def clone(self) -> Batch:
        """A copy with tensors of its own."""
        return Batch(self.tokens.clone(), self.features.clone(), self.targets.clone(), self.weights.clone())


def mean_loss(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross entropy, a mean by weight; 0/0 when no target counts."""
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()
