"""The optimizers that the decision of a step covers."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch.optim import Optimizer


class AttachedOptimizers:
    """Every optimizer made or stepped so far that still lives; LBFGS is left out by whoever attaches."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """Each optimizer's number in order of attachment, the same in every process."""
        self.on_new: list[Callable[[], None]] = []
        """Called for each new one: scripts make optimizers after their imports and models, before they train."""

    def add(self, optimizer: Optimizer) -> None:
        """Take an optimizer into the decision."""
        if optimizer not in self._numbers:
            self._numbers[optimizer] = len(self._numbers)
            for call in self.on_new:
                call()

    def all(self) -> list[Optimizer]:
        """In order of attachment; one whose making is not over yet has no parameters and is left out."""
        numbered = sorted(self._numbers.items(), key=lambda pair: pair[1])
        return [optimizer for optimizer, _ in numbered if hasattr(optimizer, "param_groups")]

    def parameters(self) -> list[torch.Tensor]:
        """Parameters of all of them, each once."""
        found: dict[int, torch.Tensor] = {}
        for optimizer in self.all():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    found.setdefault(id(parameter), parameter)
        return list(found.values())

    def clear_gradients(self) -> None:
        """Zero every gradient in place, so that views and references stay valid."""
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach().zero_()
