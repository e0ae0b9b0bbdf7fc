"""A loss scaler as steering sees it: the few private attributes of GradScaler that a common decision needs."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer


class LossScale:
    """
    One GradScaler or subclass. None of its methods waits for the device.

    GradScaler has no interface for a verdict from outside, so this writes `_per_optimizer_states`, `_scale` and
    `_growth_tracker`; where a torch has them no more, `steerable` is false and the scaler decides by itself.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler: Any = scaler

    @property
    def steerable(self) -> bool:
        """Whether this torch has what a common decision writes."""
        states = getattr(self._scaler, "_per_optimizer_states", None)
        return isinstance(states, dict) and all(
            isinstance(getattr(self._scaler, name, None), torch.Tensor) for name in ("_scale", "_growth_tracker")
        )

    @property
    def value(self) -> torch.Tensor | None:
        """A copy of the scale, float32 0-d, on its own device; None before the first loss was scaled."""
        scale = getattr(self._scaler, "_scale", None)
        return scale.detach().clone() if isinstance(scale, torch.Tensor) else None

    @property
    def backoff_factor(self) -> float:
        """What the scale is multiplied by when it backs off."""
        return float(self._scaler.get_backoff_factor())

    def leave_out(self, optimizer: Optimizer, *, back_off: bool) -> None:
        """Note a step that was left out, as `step` would have, so that the coming `update` backs off or does not."""
        state = self._scaler._per_optimizer_states[id(optimizer)]
        device = self._scaler._scale.device
        state["found_inf_per_device"] = {device: torch.full((), float(back_off), dtype=torch.float32, device=device)}
        state["stage"] = OptState.STEPPED

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of scale and growth tracker."""
        return self._scaler._scale.detach().clone(), self._scaler._growth_tracker.detach().clone()

    def restore(self, state: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Put back what `state` gave."""
        self._scaler._scale.copy_(state[0])
        self._scaler._growth_tracker.copy_(state[1])

    def hold(self, floor: float) -> None:
        """Raise the scale to `floor` when it is below."""
        self._scaler._scale.clamp_(min=floor)

    def mend_shapes(self, optimizer: Optimizer) -> None:
        """ShardedGradScaler's own found_inf has shape [1], which fused kernels refuse; make it 0-d."""
        found = self._scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device", {})
        for device, flag in found.items():
            if flag.dim():
                found[device] = flag.reshape(())

    def found(self, optimizer: Optimizer) -> bool | None:
        """What the scaler's own check of this optimizer found; None when it made none, or it lies on an accelerator."""
        flags = list(self._scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device", {}).values())
        if not flags or any(flag.device.type != "cpu" for flag in flags):
            return None
        return any(float(flag) for flag in flags)
