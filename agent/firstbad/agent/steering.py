"""
The fixed point of decision: `Optimizer.step` of every class, and `GradScaler.step` where a scaler stands before it.

Hooks of torch cannot leave a step out, so the class's `step` itself is wrapped, at class level: instance wraps are
lost by deepcopy and break LRScheduler, which takes `step.__func__`.
"""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, Optimizer

from firstbad.agent.patches import Patches

_MARK = "_firstbad_original"


class Decider(Protocol):
    """What steering asks of the guard."""

    def decide(self, optimizer: Optimizer, *, scaler: GradScaler | None) -> bool:
        """Take or reuse the decision for this step; True when the update may be applied. May raise by policy."""

    def settled(self, optimizer: Optimizer, *, applied: bool | None) -> None:
        """The optimizer's part of the step is over: `applied` is None when nobody knows."""

    def unprotected(self, optimizer: Optimizer, why: str) -> None:
        """An optimizer steps where no decision can be taken."""

    def scaled_loss(self, outputs: Any, result: Any) -> None:
        """A scaler has multiplied a loss."""


class Steering:
    """Wraps optimizers and scalers of the process and asks the decider at each of their steps."""

    def __init__(self, decider: Decider, patches: Patches) -> None:
        self._decider = decider
        self._patches = patches
        self._busy = False
        self._entered = False
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        """Every attached optimizer and its number in order of attachment, the same in every process."""

    @property
    def optimizers(self) -> list[Optimizer]:
        """Every optimizer made or stepped so far that still lives, LBFGS left out."""
        numbered = sorted(self._optimizers.items(), key=lambda pair: pair[1])
        return [optimizer for optimizer, _ in numbered if hasattr(optimizer, "param_groups")]

    def parameters(self) -> list[torch.Tensor]:
        """Parameters of all attached optimizers, each once."""
        found: dict[int, torch.Tensor] = {}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    found.setdefault(id(parameter), parameter)
        return list(found.values())

    def install(self) -> None:
        """Wrap every optimizer class that exists, and hook the making of the others."""
        original = Optimizer._patch_step_function
        steering = self

        @functools.wraps(original)
        def patch_step_function(optimizer: Optimizer) -> None:
            original(optimizer)
            steering._adopt(optimizer)

        self._patches.replace(Optimizer, "_patch_step_function", patch_step_function)
        for cls in _subclasses(Optimizer):
            if getattr(vars(cls).get("step"), "hooked", False):
                self._wrap_class(cls)
        self._wrap_scaler()
        self._attach_living()

    def clear_gradients(self) -> None:
        """Zero the gradients of every attached optimizer in place, so that views and references stay valid."""
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach().zero_()

    def _adopt(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, LBFGS):
            self._attach(optimizer)
        self._wrap_class(type(optimizer))

    def _attach(self, optimizer: Optimizer) -> None:
        self._optimizers.setdefault(optimizer, len(self._optimizers))

    def _attach_living(self) -> None:
        """Optimizers made before the guard, and those whose scheduler has put the unwrapped step on the instance."""
        found = [
            item for item in gc.get_objects() if issubclass(type(item), Optimizer) and hasattr(item, "param_groups")
        ]
        for optimizer in found:
            if isinstance(optimizer, LBFGS):
                continue
            self._attach(optimizer)
            own = vars(optimizer).get("step")
            if own is not None:
                self._wrap_instance(optimizer, own)

    def _wrap_instance(self, optimizer: Optimizer, own: Any) -> None:
        def call(_this: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return own(*args, **kwargs)

        @functools.wraps(own)
        def step(this: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return self._step(this, call, args, kwargs)

        self._patches.replace(optimizer, "step", types.MethodType(step, optimizer))

    def _wrap_class(self, cls: type[Optimizer]) -> None:
        original = cls.step
        if hasattr(original, _MARK):
            return

        @functools.wraps(original)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return self._step(optimizer, original, args, kwargs)

        setattr(step, _MARK, original)
        step.hooked = True  # type: ignore[attr-defined]
        self._patches.replace(cls, "step", step)

    def _step(self, optimizer: Optimizer, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._entered = True
        if self._busy:
            return original(optimizer, *args, **kwargs)
        if isinstance(optimizer, LBFGS):
            self._decider.unprotected(optimizer, "LBFGS evaluates its closure many times inside one step")
            return original(optimizer, *args, **kwargs)
        if torch._C._current_graph_task_id() != -1:
            self._decider.unprotected(optimizer, "it steps inside backward, before anybody can decide")
            return original(optimizer, *args, **kwargs)
        self._attach(optimizer)
        result, args, kwargs = _evaluate_closure(args, kwargs)
        if not self._decider.decide(optimizer, scaler=None):
            self._decider.settled(optimizer, applied=False)
            return result
        self._busy = True
        try:
            out = original(optimizer, *args, **kwargs)
        finally:
            self._busy = False
        self._decider.settled(optimizer, applied=True)
        return out

    def _wrap_scaler(self) -> None:
        original, scale = GradScaler.step, GradScaler.scale
        steering = self

        @functools.wraps(original)
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled() or steering._busy:
                return original(scaler, optimizer, *args, **kwargs)
            steering._attach(optimizer)
            steering._decider.decide(optimizer, scaler=scaler)
            steering._busy, steering._entered = True, False
            try:
                out = original(scaler, optimizer, *args, **kwargs)
            finally:
                steering._busy = False
            steering._decider.settled(optimizer, applied=steering._scaler_applied(scaler, optimizer))
            return out

        @functools.wraps(scale)
        def note_scale(scaler: GradScaler, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            if scaler.is_enabled():
                steering._decider.scaled_loss(outputs, result)
            return result

        self._patches.replace(GradScaler, "step", step)
        self._patches.replace(GradScaler, "scale", note_scale)

    def _scaler_applied(self, scaler: GradScaler, optimizer: Optimizer) -> bool | None:
        if not self._entered:
            return False
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            return True
        # A fused kernel is always called and decides by its own flag; reading that on an accelerator would wait.
        flags = list(getattr(scaler, "_found_inf_per_device", lambda _: {})(optimizer).values())
        if not flags or any(flag.device.type != "cpu" for flag in flags):
            return None
        return not any(float(flag) for flag in flags)


def _subclasses(cls: type[Optimizer]) -> list[type[Optimizer]]:
    return [found for child in cls.__subclasses__() for found in (child, *_subclasses(child))]


def _evaluate_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """
    Run the closure once, before the decision, and hand its result on: it holds the forward and the backward, so
    nothing could be decided before it.
    """
    closure = args[0] if args else kwargs.get("closure")
    if closure is None:
        return None, args, kwargs
    with torch.enable_grad():
        result = closure()
    if args:
        return result, (lambda: result, *args[1:]), kwargs
    return result, args, {**kwargs, "closure": lambda: result}
