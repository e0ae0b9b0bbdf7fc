"""Gradients that the script clears between a backward and a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.window import Window


class ClearingObserver(Observer):
    """
    Notices that every gradient of an open window was cleared with no step: the script has left a bad update out by
    itself (`if not isfinite(norm): continue`), or puts gradients aside to combine them. Costs nothing in the usual
    order, where a step comes before zero_grad.
    """

    name = "clearing"

    def __init__(self, scene: Scene, parameters: Callable[[], list[torch.Tensor]]) -> None:
        super().__init__(scene)
        self._parameters = parameters
        self._of: tuple[Window | None, int] = (None, 0)
        self._cleared: set[int] = set()

    def install(self) -> None:
        """Wrap Optimizer.zero_grad and Module.zero_grad."""
        for owner, parameters in ((Optimizer, _of_optimizer), (nn.Module, _of_module)):
            self.scene.patches.replace(owner, "zero_grad", self._wrap(owner.zero_grad, parameters))

    def _wrap(self, original: Any, parameters: Callable[[Any], Iterable[torch.Tensor]]) -> Any:
        cleared = self.watch(self._clear)

        @functools.wraps(original)
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(owner, *args, **kwargs)
            if self.scene.window.kept_micro_steps:
                cleared(parameters(owner))
            return result

        return zero_grad

    def _clear(self, parameters: Iterable[torch.Tensor]) -> None:
        window = self.scene.window
        if self._of[0] is not window or self._of[1] != window.micro_steps:
            self._of = window, window.micro_steps
            self._cleared.clear()
        self._cleared.update(map(id, parameters))
        if all(parameter.grad is None or id(parameter) in self._cleared for parameter in self._parameters()):
            window.throw_away()


def _of_optimizer(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _of_module(module: nn.Module) -> Iterable[torch.Tensor]:
    return list(module.parameters())
