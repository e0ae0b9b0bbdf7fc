"""Gradients: at the inputs of DDP's reductions, where a norm is taken, and before the update."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad

from firstbad.agent.models import replicas
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.statistics import TensorStatistics, is_finite, local_part, measure, norms_of
from firstbad.agent.window import Mark
from firstbad.schema import Stage, TensorKind

EVIDENCE_ROWS = 32
"""Tensors described per look at the gradients: the bad ones first in backward order, and their finite neighbours."""


class GradientObserver(Observer):
    """
    Looks at `.grad` of given parameters and marks what is not finite, in backward order, bracketed by the nearest
    finite neighbours. One L2 norm per tensor; an overflowing norm is confirmed exactly before anything is called bad.
    """

    name = "gradients"

    def __init__(self, scene: Scene, parameters: Callable[[], list[torch.Tensor]]) -> None:
        super().__init__(scene)
        self._parameters = parameters

    def before_update(self) -> None:
        """
        The last look, over every attached optimizer, unless a finite norm of the same gradients is already there.

        On the CPU it reads the result; elsewhere it leaves a mark that is read with the verdict.
        """
        window = self.scene.window
        if window.gradients_checked:
            return
        window.gradients_checked = True
        owners = [parameter for parameter in self._parameters() if parameter.grad is not None]
        if not owners:
            return
        norms = norms_of([local_part(_grad(owner)) for owner in owners])
        total = torch.linalg.vector_norm(norms)
        if total.device.type == "cpu":
            value = float(total)
            if math.isfinite(value):
                window.grad_sq = value * value
            else:
                self._mark(owners, norms.tolist(), window.current_micro_step, exact=window.micro_steps == 1)
        else:
            reduced = any(self._is_reduced(owner) for owner in owners)
            stage = Stage.GRAD_REDUCED if reduced else Stage.GRAD
            exact = window.micro_steps == 1
            window.marks.append(Mark(stage, window.current_micro_step, exact=exact, trigger=True, value=total))

    def between_micro_steps(self) -> None:
        """
        Before a backward that accumulates onto gradients which the micro step before has already reduced: are those
        bad? Then what the coming reduction is handed is a peer's fault. One pass, only where people reduce each time.
        """
        window = self.scene.window
        earlier = window.current_micro_step
        if earlier not in window.synced_micro_steps:
            return
        grads = [local_part(_grad(p)) for p in self._parameters() if p.grad is not None and self._is_reduced(p)]
        if not grads:
            return
        total = torch.linalg.vector_norm(norms_of(grads))
        mark = Mark(Stage.GRAD_REDUCED, earlier, exact=True, trigger=True, value=total)
        if total.device.type == "cpu":
            mark.value = float(total)
            if math.isfinite(mark.value) or all(is_finite(grad) for grad in grads):
                return
            mark.value = math.nan
        window.marks.append(mark)

    def local(self, micro_step: int, *, exact: bool, within: Iterable[torch.Tensor] | None = None) -> bool:
        """
        Gradients that are still this rank's own, at a moment when one is known to be bad. CPU only.

        Returns: whether a bad one was found (and marked with stage grad).
        """
        owners = [p for p in (self._parameters() if within is None else within) if p.grad is not None]
        if not owners:
            return False
        norms = norms_of([local_part(_grad(owner)) for owner in owners]).tolist()
        return self._mark(owners, norms, micro_step, exact=exact, own=True)

    def _mark(
        self, owners: list[torch.Tensor], norms: list[float], micro_step: int, *, exact: bool, own: bool = False
    ) -> bool:
        models = self.scene.models
        ordered = sorted(zip(owners, norms, strict=True), key=lambda pair: models.backward_order(pair[0]))
        bad = [not math.isfinite(norm) and not is_finite(_grad(owner)) for owner, norm in ordered]
        if not any(bad):
            return False
        first = bad.index(True)
        owner = ordered[first][0]
        place = models.place(owner)
        stage = Stage.GRAD_REDUCED if self._is_reduced(owner) and not own else Stage.GRAD
        wanted = [i for i, flag in enumerate(bad) if flag or any(bad[max(i - 1, 0) : i + 2])][:EVIDENCE_ROWS]
        self.scene.window.marks.append(
            Mark(
                stage,
                micro_step,
                exact=exact,
                trigger=True,
                order=models.backward_order(owner),
                module=place.module if place else None,
                parameter=place.name if place else None,
                evidence=[self._describe(ordered[i][0], micro_step) for i in wanted],
            )
        )
        return True

    def _is_reduced(self, owner: torch.Tensor) -> bool:
        place = self.scene.models.place(owner)
        return bool(place and place.reduced) or hasattr(owner, "to_local")

    def _describe(self, owner: torch.Tensor, micro_step: int) -> TensorStatistics:
        place = self.scene.models.place(owner)
        return measure(
            _grad(owner),
            kind=TensorKind.GRAD,
            name=place.name if place else "unnamed parameter",
            module=place.module if place else None,
            micro_step=micro_step,
        )


class ReductionObserver(Observer):
    """
    Looks at what DDP hands to its reductions: there a gradient is still this rank's own. Needs
    `ProcessGroup.register_pre_hook`; without it the origin of a bad gradient on several ranks stays unknown (null).
    """

    name = "reductions"

    def __init__(self, scene: Scene, gradients: GradientObserver) -> None:
        super().__init__(scene)
        self._gradients = gradients
        self._hooked: list[tuple[Any, int]] = []
        self._found_in: int = -1

    def found(self, root: nn.Module) -> None:
        """Hook the process groups of the DDP models in an outermost module."""
        if not hasattr(dist.ProcessGroup, "register_pre_hook"):
            return
        for model in replicas(root):
            group = model.process_group
            if any(known is group for known, _ in self._hooked):
                continue
            # The same id would silently replace somebody else's hook. Not the script's random stream: never touch it.
            hook_id = random.SystemRandom().getrandbits(62)
            group.register_pre_hook(hook_id, self.watch(self._look))
            self._hooked.append((group, hook_id))

    def remove(self) -> None:
        """Take the hooks away."""
        for group, hook_id in self._hooked:
            group.unregister_pre_hook(hook_id)
        self._hooked.clear()

    @torch.no_grad()
    def _look(self, call: Any) -> None:
        if torch._C._current_graph_task_id() == -1:
            return
        window = self.scene.window
        micro = window.current_micro_step
        window.synced_micro_steps.add(micro)
        accumulated = micro > 0
        for tensor in call.input_tensors:
            if not tensor.dtype.is_floating_point or not tensor.numel():
                continue
            norm = torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
            exact = window.every_micro_step_synced
            if norm.device.type != "cpu":
                mark = Mark(Stage.GRAD, micro, exact=exact, trigger=True, value=norm, accumulated=accumulated)
                window.marks.append(mark)
            elif not math.isfinite(float(norm)) and not is_finite(tensor):
                self._bad(tensor, micro, exact)

    def _bad(self, bucket: torch.Tensor, micro: int, exact: bool) -> None:
        window = self.scene.window
        if any(mark.stage is Stage.GRAD and mark.micro_step == micro for mark in window.marks):
            return  # the first bad bucket of a micro step has named the culprit; later ones only follow
        statistics = measure(bucket, kind=TensorKind.GRAD_BUCKET, name="bucket", module=None, micro_step=micro)
        storage = bucket.untyped_storage().data_ptr()
        owners = [p for p in self.scene.models.parameters() if p.grad is not None]
        views = [p for p in owners if _grad(p).untyped_storage().data_ptr() == storage]
        # Gradients that are views of buckets may already be under reduction elsewhere: only this bucket's are our own.
        if self._gradients.local(micro, exact=exact, within=views or owners):
            window.marks[-1].evidence.append(statistics)
            window.marks[-1].accumulated = micro > 0
        else:
            window.marks.append(
                Mark(Stage.GRAD, micro, exact=exact, trigger=True, evidence=[statistics], accumulated=micro > 0)
            )


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
        self.trusted = True
        """False while a loss scaler is in use: the norm may be of scaled gradients."""

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
        see = self.watch(self._see)

        @functools.wraps(original)
        def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> torch.Tensor:
            if not isinstance(tensors, torch.Tensor):
                tensors = list(tensors)
            see_norm = functools.partial(see, tensors, norm_type)
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
    def _see(self, tensors: Any, norm_type: float, norm: torch.Tensor) -> None:
        window = self.scene.window
        if not window.micro_steps or not self.trusted or float(norm_type) != 2.0 or hasattr(norm, "to_local"):
            return
        given = {id(tensor) for tensor in ([tensors] if isinstance(tensors, torch.Tensor) else tensors)}
        grads = [p.grad for p in self._parameters() if p.grad is not None]
        if not grads or not all(id(grad) in given for grad in grads):
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


def _grad(owner: torch.Tensor) -> torch.Tensor:
    grad = owner.grad
    if grad is None:
        raise ValueError("parameter has no gradient")
    return grad
