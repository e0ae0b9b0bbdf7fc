"""Gradients of FSDP2 before their reduce-scatter: whole and still this rank's own."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import torch
from torch import nn

from firstbad.agent.models.wrappers import sharded_groups
from firstbad.agent.observers.canary import LARGEST
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
        self._wrap_quiet(getattr(module, "FSDPParamGroup", None))

    def _wrap_quiet(self, group_class: Any) -> None:
        """Look at small parameters in micro steps that do not reduce, so that the bad one is known."""
        original = getattr(group_class, "post_backward", None)
        if original is None:
            return
        look = self.watch(self._look_quietly)

        @functools.wraps(original)
        def post_backward(group: Any, *unused: Any) -> Any:
            if not getattr(group, "reduce_grads", True):
                look(group)
            return original(group, *unused)

        self.scene.patches.replace(group_class, "post_backward", post_backward)

    @torch.no_grad()
    def _look_quietly(self, group: Any) -> None:
        window = self.scene.window
        micro = window.current_micro_step
        pairs: list[Pair] = []
        for item in group.fsdp_params:
            whole = getattr(item, "_unsharded_param", None)
            grad = getattr(item, "unsharded_accumulated_grad", None)
            grad = grad if grad is not None else getattr(whole, "grad", None)
            if grad is not None and grad.numel() <= LARGEST and grad.device.type == "cpu":
                pairs.append((item.sharded_param, grad))
        if not pairs or any(mark.stage is Stage.GRAD and mark.trigger for mark in window.marks):
            return
        self._gradients.local(pairs, micro, exact=True)

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
            earlier = [m for m in window.marks if m.stage is Stage.GRAD and m.micro_step == micro and m.trigger]
            if earlier:
                self._gradients.rename(earlier[0], pairs, norms.tolist())
            else:
                bad = [not math.isfinite(norm) for norm in norms.tolist()]
                # Small ones were finite after every earlier micro step, so theirs is this one.
                exact = exact or any(flag and grad.numel() <= LARGEST for flag, grad in zip(bad, grads, strict=True))
                self._gradients.mark(pairs, norms.tolist(), micro, exact=exact, own=True, exchange=turn)
        return True
