"""The norm of all gradients that the script computes itself."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad

from firstbad.agent.observers.gradients import GradientObserver
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.window import Mark
from firstbad.schema import Stage

logger = logging.getLogger("firstbad.agent")


class NormObserver(Observer):
    """
    Takes the norm that the script computes itself, for the ledger and instead of a pass of our own; and looks at the
    gradients before a clip with a non-finite norm turns them all into NaN.
    """

    name = "norm"

    def __init__(self, scene: Scene, gradients: GradientObserver, parameters: Callable[[], list[torch.Tensor]]) -> None:
        super().__init__(scene)
        self._gradients = gradients
        self._parameters = parameters
        self.wrong_order = False
        """A norm of still-scaled gradients was taken."""

    def install(self) -> None:
        """Wrap the norm that clip_grad_norm_ and get_total_norm share, under whatever name this torch has it."""
        for name in ("_get_total_norm", "get_total_norm"):
            original = getattr(clip_grad, name, None)
            if original is None:
                continue
            wrapped = self._wrap(original)
            self.scene.patches.replace(clip_grad, name, wrapped)
            if getattr(nn.utils, "get_total_norm", None) is original:
                self.scene.patches.replace(nn.utils, "get_total_norm", wrapped)

    def _wrap(self, original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        see, look_first = self.watch(self._see), self.watch(self._look_first)

        @functools.wraps(original)
        def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> torch.Tensor:
            if not isinstance(tensors, torch.Tensor):
                tensors = list(tensors)
            see_norm = functools.partial(see, tensors, norm_type)
            if hasattr(next(iter(tensors), None), "to_local"):
                look_first()  # the norm is not whole yet, and the clip that follows may turn every gradient bad
            if kwargs.get("error_if_nonfinite") or (args and args[0]):
                # It raises on a bad norm: look at the gradients while we can.
                quiet = {**kwargs, "error_if_nonfinite": False}
                see_norm(original(tensors, norm_type, *(False, *args[1:]) if args else (), **({} if args else quiet)))
                return original(tensors, norm_type, *args, **kwargs)
            norm = original(tensors, norm_type, *args, **kwargs)
            see_norm(norm)
            return norm

        return get_total_norm

    @torch.no_grad()
    def _look_first(self) -> None:
        if self.scene.window.micro_steps:
            self._gradients.before_update()

    @torch.no_grad()
    def _see(self, tensors: Any, norm_type: float, norm: torch.Tensor) -> None:
        window = self.scene.window
        if not window.micro_steps or float(norm_type) != 2.0 or hasattr(norm, "to_local"):
            return
        given = {id(tensor) for tensor in ([tensors] if isinstance(tensors, torch.Tensor) else tensors)}
        grads = [p.grad for p in self._parameters() if p.grad is not None]
        if not grads or not all(id(grad) in given for grad in grads):
            return
        if window.gradients_scaled:
            self._wrong_order()
            if norm.device.type == "cpu" and not math.isfinite(float(norm)):
                self._gradients.before_update()
            return
        window.grad_norm = norm.detach() if norm.device.type != "cpu" else float(norm)
        if isinstance(window.grad_norm, float):
            if math.isfinite(window.grad_norm):
                window.grad_sq, window.gradients_checked = window.grad_norm**2, True
            else:
                self._gradients.before_update()
        else:
            stage = Stage.GRAD if not dist.is_initialized() else Stage.GRAD_REDUCED
            exact = window.micro_steps == 1
            window.marks.append(Mark(stage, window.current_micro_step, exact=exact, trigger=True, value=norm.detach()))
            window.gradients_checked = True

    def _wrong_order(self) -> None:
        if not self.wrong_order:
            self.wrong_order = True
            logger.warning(
                "firstbad: the script takes or clips the gradient norm while a GradScaler still scales the gradients, "
                "so it clips to the wrong length; call scaler.unscale_(optimizer) first. Such norms are not recorded"
            )
