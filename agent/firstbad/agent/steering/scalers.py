"""Loss scalers: `GradScaler.step` is the fixed point where one stands before an optimizer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from firstbad.agent.patches import Patches
from firstbad.agent.steering.attached import AttachedOptimizers
from firstbad.agent.steering.decider import Decider
from firstbad.agent.steering.lossscale import LossScale
from firstbad.agent.steering.optimizers import OptimizerSteering

State = tuple[torch.Tensor, torch.Tensor]


class ScalerSteering:
    """
    Wraps loss scalers, whose own check is local to a rank: left alone, one rank skips and backs off while its peers
    step. A step that is left out is left out on all ranks, and then the loss scale backs off on all (overflow) or on
    none (the data or the weights are bad, and a lower scale would cure nothing).
    """

    def __init__(
        self,
        decider: Decider,
        attached: AttachedOptimizers,
        optimizers: OptimizerSteering,
        patches: Patches,
        *,
        floor: float,
    ) -> None:
        """
        Args:
            floor: what a loss scale never backs off below.
        """
        self._decider = decider
        self._attached = attached
        self._optimizers = optimizers
        self._patches = patches
        self._floor = floor
        self._backing_off: weakref.WeakSet[GradScaler] = weakref.WeakSet()
        self._frozen: weakref.WeakKeyDictionary[GradScaler, State] = weakref.WeakKeyDictionary()
        self._wrapped: set[type[GradScaler]] = set()

    def install(self) -> None:
        """Wrap `step`, `scale`, `unscale_` and `update` of GradScaler and the subclasses that exist."""
        self.refresh()

    def refresh(self) -> None:
        """Wrap subclasses made since. Cheap."""
        classes: list[type[GradScaler]] = [GradScaler, *GradScaler.__subclasses__()]
        for cls in classes:
            if cls in self._wrapped:
                continue
            self._wrapped.add(cls)
            for name, wrap in (
                ("step", self._wrap_step),
                ("scale", self._wrap_scale),
                ("unscale_", self._wrap_unscale),
                ("update", self._wrap_update),
            ):
                if name in vars(cls):
                    self._patches.replace(cls, name, wrap(vars(cls)[name]))

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled() or self._optimizers.busy:
                return original(scaler, optimizer, *args, **kwargs)
            return self._step(scaler, original, optimizer, args, kwargs)

        return step

    def _step(self, scaler: GradScaler, original: Any, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        scale = LossScale(scaler)
        self._attached.add(optimizer)
        if not self._decider.decide(optimizer, scaler=scale):
            back_off = self._decider.backs_off()
            if back_off:
                self._backing_off.add(scaler)
            elif scaler not in self._frozen:
                self._frozen[scaler] = scale.state()
            scale.leave_out(optimizer, back_off=back_off)
            self._decider.settled(optimizer, applied=False)
            return None
        if scale.steerable:
            scale.mend_shapes(optimizer)
        self._optimizers.entered = False
        with self._optimizers.passing():
            out = original(scaler, optimizer, *args, **kwargs)
        self._decider.settled(optimizer, applied=self._applied(scale, optimizer))
        return out

    def _applied(self, scale: LossScale, optimizer: Optimizer) -> bool | None:
        if not self._optimizers.entered:
            return False
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            return True
        # A fused kernel is always called and decides by its own flag; reading that on an accelerator would wait.
        found = scale.found(optimizer) if scale.steerable else None
        return None if found is None else not found

    def _wrap_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if scaler.is_enabled():
                self._decider.scaled_loss(outputs, result)
            return result

        return scale

    def _wrap_unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def unscale_(scaler: GradScaler, optimizer: Optimizer) -> Any:
            result = original(scaler, optimizer)
            if scaler.is_enabled():
                self._decider.unscaled()
            return result

        return unscale_

    def _wrap_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(scaler: GradScaler, new_scale: Any = None) -> Any:
            frozen, backing_off = self._frozen.pop(scaler, None), scaler in self._backing_off
            self._backing_off.discard(scaler)
            result = original(scaler, new_scale)
            if frozen is not None and new_scale is None:
                LossScale(scaler).restore(frozen)
            elif backing_off and new_scale is None:
                LossScale(scaler).hold(self._floor)
            return result

        return update
