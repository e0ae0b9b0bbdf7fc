"""What steering asks of whoever decides."""

from __future__ import annotations

from typing import Any, Protocol

from torch.optim import Optimizer

from firstbad.agent.steering.lossscale import LossScale


class Decider(Protocol):
    """The fixed point, seen from an optimizer's step."""

    def decide(self, optimizer: Optimizer, *, scaler: LossScale | None = None) -> bool:
        """Take or reuse the decision for this step; True when the update may be applied. May raise by policy."""

    def settled(self, optimizer: Optimizer, *, applied: bool | None) -> None:
        """The optimizer's part of the step is over: `applied` is None when nobody knows."""

    def unprotected(self, optimizer: Optimizer, why: str, *, recorded: bool = False) -> None:
        """
        An optimizer's step, or a part of it, cannot be decided; its backwards belong to no decision.

        Args:
            recorded: the step was decided and recorded, only a part of it was not.
        """

    def backs_off(self) -> bool:
        """Whether the last decision, a skip, orders the loss scale to back off; else it stays."""

    def unscaled(self) -> None:
        """A scaler has divided the gradients by the loss scale."""

    def scaled_loss(self, outputs: Any, result: Any) -> None:
        """A scaler has multiplied a loss."""
