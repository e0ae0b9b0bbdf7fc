"""Gradients of FSDP2 before their reduce-scatter: whole and still this rank's own."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import torch
from torch import nn

from firstbad.agent.models.wrappers import sharded_groups
from firstbad.agent.observers.gradients import GradientObserver, Pair
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.statistics import norms_of
from firstbad.agent.window import Mark
from firstbad.schema import Stage

_WHERE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


class ShardedObserver(Observer):
    """
    Wraps FSDP2's `foreach_reduce`, which is handed each parameter's whole gradient; a private surface, and the only one
    in older torch. Where it is missing the observer of collectives sees the flat input, without parameter names.
    """

    name = "sharded"

    def __init__(self, scene: Scene, gradients: GradientObserver) -> None:
        super().__init__(scene)
        self._gradients = gradients
        self._wrapped = False

    def found(self, root: nn.Module) -> None:
        """Wrap the reduction when an outermost module uses it."""
        module = sys.modules.get(_WHERE)
        original = getattr(module, "foreach_reduce", None)
        if self._wrapped or original is None or next(sharded_groups(root), None) is None:
            return
        self._wrapped = True
        look = self.watch(self._look)

        @functools.wraps(original)
        def foreach_reduce(fsdp_params: Any, unsharded_grads: Any, *args: Any, **kwargs: Any) -> Any:
            self.scene.looked_at_reduction = bool(look(list(fsdp_params), list(unsharded_grads)))
            try:
                return original(fsdp_params, unsharded_grads, *args, **kwargs)
            finally:
                self.scene.looked_at_reduction = False

        self.scene.patches.replace(module, "foreach_reduce", foreach_reduce)

    @torch.no_grad()
    def _look(self, fsdp_params: list[Any], grads: list[torch.Tensor]) -> bool:
        """Returns: the gradients were looked at."""
        window = self.scene.window
        micro, exact = window.current_micro_step, window.every_micro_step_synced
        window.synced_micro_steps.add(micro)
        turn = self.scene.exchanges.coming(window, "backward", micro)
        norms = norms_of(grads)
        total = torch.linalg.vector_norm(norms)
        if total.device.type != "cpu":
            mark = Mark(Stage.GRAD, micro, exact=exact, trigger=True, value=total)
            mark.order = self.scene.models.backward_order(fsdp_params[0].sharded_param, turn)
            window.marks.append(mark)
        elif not math.isfinite(float(total)):
            pairs: list[Pair] = [(item.sharded_param, grad) for item, grad in zip(fsdp_params, grads, strict=True)]
            if not any(mark.stage is Stage.GRAD and mark.micro_step == micro and mark.trigger for mark in window.marks):
                self._gradients.mark(pairs, norms.tolist(), micro, exact=exact, own=True, exchange=turn)
        return True
