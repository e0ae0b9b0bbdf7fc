"""What steering asks of whoever decides."""

from __future__ import annotations

from typing import Any, Protocol

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class Decider(Protocol):
    """The fixed point, seen from an optimizer's step."""

    def decide(self, optimizer: Optimizer, *, scaler: GradScaler | None = None) -> bool:
        """Take or reuse the decision for this step; True when the update may be applied. May raise by policy."""

    def settled(self, optimizer: Optimizer, *, applied: bool | None) -> None:
        """The optimizer's part of the step is over: `applied` is None when nobody knows."""

    def unprotected(self, optimizer: Optimizer, why: str, *, recorded: bool = False) -> None:
        """
        An optimizer's step, or a part of it, cannot be decided; its backwards belong to no decision.

        Args:
            recorded: the step was decided and recorded, only a part of it was not.
        """

    def scaled_loss(self, outputs: Any, result: Any) -> None:
        """A scaler has multiplied a loss."""
