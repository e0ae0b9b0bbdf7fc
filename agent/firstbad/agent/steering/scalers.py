"""Loss scalers: `GradScaler.step` is the fixed point where one stands before an optimizer, `scale` tells the loss."""

from __future__ import annotations

import functools
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from firstbad.agent.patches import Patches
from firstbad.agent.steering.attached import AttachedOptimizers
from firstbad.agent.steering.decider import Decider
from firstbad.agent.steering.optimizers import OptimizerSteering


class ScalerSteering:
    """Wraps loss scalers. Whether an update is left out is still the scaler's own decision on each rank."""

    def __init__(
        self, decider: Decider, attached: AttachedOptimizers, optimizers: OptimizerSteering, patches: Patches
    ) -> None:
        self._decider = decider
        self._attached = attached
        self._optimizers = optimizers
        self._patches = patches

    def install(self) -> None:
        """Wrap `step` and `scale` of GradScaler."""
        original, scale = GradScaler.step, GradScaler.scale
        steering = self

        @functools.wraps(original)
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled() or steering._optimizers.busy:
                return original(scaler, optimizer, *args, **kwargs)
            return steering._step(scaler, original, optimizer, args, kwargs)

        @functools.wraps(scale)
        def note_scale(scaler: GradScaler, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            if scaler.is_enabled():
                steering._decider.scaled_loss(outputs, result)
            return result

        self._patches.replace(GradScaler, "step", step)
        self._patches.replace(GradScaler, "scale", note_scale)

    def _step(self, scaler: GradScaler, original: Any, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._attached.add(optimizer)
        self._decider.decide(optimizer, scaler=scaler)
        self._optimizers.entered = False
        with self._optimizers.passing():
            out = original(scaler, optimizer, *args, **kwargs)
        self._decider.settled(optimizer, applied=self._applied(scaler, optimizer))
        return out

    def _applied(self, scaler: GradScaler, optimizer: Optimizer) -> bool | None:
        if not self._optimizers.entered:
            return False
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            return True
        # A fused kernel is always called and decides by its own flag; reading that on an accelerator would wait.
        flags = list(getattr(scaler, "_found_inf_per_device", lambda _: {})(optimizer).values())
        if not flags or any(flag.device.type != "cpu" for flag in flags):
            return None
        return not any(float(flag) for flag in flags)
