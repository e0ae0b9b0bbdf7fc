"""
The fixed point of decision: `Optimizer.step` of every class.

Hooks of torch cannot leave a step out, so the class's `step` itself is wrapped, at class level: instance wraps are
lost by deepcopy and break LRScheduler, which takes `step.__func__`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from firstbad.agent.patches import Patches
from firstbad.agent.steering.attached import AttachedOptimizers
from firstbad.agent.steering.closures import ClosureStep, closure_of, wraps_another
from firstbad.agent.steering.decider import Decider

_MARK = "_firstbad_original"


class OptimizerSteering:
    """Wraps the optimizers of the process and asks the decider at each of their steps."""

    def __init__(self, decider: Decider, attached: AttachedOptimizers, patches: Patches) -> None:
        self._decider = decider
        self._attached = attached
        self._patches = patches
        self._closures = ClosureStep(decider)
        self.busy = False
        """A decided step is running."""
        self.entered = False
        """An optimizer's step was entered since this was last set to false."""

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
        self._attach_living()

    def _adopt(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, LBFGS):
            self._attached.add(optimizer)
        self._wrap_class(type(optimizer))

    def _attach_living(self) -> None:
        """Optimizers made before the guard, and those whose scheduler has put the unwrapped step on the instance."""
        found = [
            item for item in gc.get_objects() if issubclass(type(item), Optimizer) and hasattr(item, "param_groups")
        ]
        for optimizer in found:
            if isinstance(optimizer, LBFGS):
                continue
            self._attached.add(optimizer)
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
        self.entered = True
        if self.busy:
            return original(optimizer, *args, **kwargs)
        if isinstance(optimizer, LBFGS):
            self._decider.unprotected(optimizer, "LBFGS evaluates its closure many times inside one step")
            return original(optimizer, *args, **kwargs)
        if torch._C._current_graph_task_id() != -1:
            self._decider.unprotected(optimizer, "it steps inside backward, before anybody can decide")
            return original(optimizer, *args, **kwargs)
        closure = closure_of(args, kwargs)
        if closure is not None and wraps_another(optimizer):
            return original(optimizer, *args, **kwargs)
        self._attached.add(optimizer)
        out: Any = None
        if closure is not None:
            with self.passing():
                out, applied = self._closures.run(optimizer, original, args, kwargs)
        else:
            applied = self._decider.decide(optimizer)
            if applied:
                with self.passing():
                    out = original(optimizer, *args, **kwargs)
        self._decider.settled(optimizer, applied=applied)
        return out

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """The decision is taken: steps inside go through. Nested steps of wrappers and subclasses are no new ones."""
        was, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = was


def _subclasses(cls: type[Optimizer]) -> list[type[Optimizer]]:
    return [found for child in cls.__subclasses__() for found in (child, *_subclasses(child))]
