"""Gradients of parameters: before the update, between micro steps, and whenever one is known to be bad."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from firstbad.agent.models.modelmap import UNSEEN
from firstbad.agent.models.order import LAST
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.statistics import TensorStatistics, is_finite, local_part, measure, norms_of
from firstbad.agent.window import Mark
from firstbad.schema import Stage, TensorKind

EVIDENCE_ROWS = 32
"""Tensors described per look at the gradients: the bad ones first in backward order, and their finite neighbours."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""A parameter, which gives the names, and a gradient of it."""


class GradientObserver(Observer):
    """
    Looks at gradients and marks what is not finite, in backward order, bracketed by the nearest finite neighbours. One
    L2 norm per tensor; an overflowing norm is confirmed exactly before anything is called bad.
    """

    name = "gradients"

    def __init__(self, scene: Scene, parameters: Callable[[], list[torch.Tensor]]) -> None:
        super().__init__(scene)
        self._parameters = parameters

    def held(self, parameters: Sequence[torch.Tensor] | None = None) -> list[Pair]:
        """The given parameters, default all attached ones, that hold a `.grad`, with it."""
        return [(p, p.grad) for p in (self._parameters() if parameters is None else parameters) if p.grad is not None]

    def before_update(self) -> None:
        """
        The last look, over every attached optimizer, unless a finite norm of the same gradients is already there.

        On the CPU it reads the result; elsewhere it leaves a mark that is read with the verdict.
        """
        window = self.scene.window
        if window.gradients_checked:
            return
        window.gradients_checked = True
        pairs = self.held()
        if not pairs:
            return
        norms = norms_of([local_part(grad) for _, grad in pairs])
        total = torch.linalg.vector_norm(norms)
        micro, exact = window.current_micro_step, window.micro_steps == 1
        if total.device.type == "cpu":
            value = float(total)
            if math.isfinite(value):
                scale = window.loss_scale if window.gradients_scaled and isinstance(window.loss_scale, float) else 1.0
                window.grad_sq = (value / scale) ** 2 if scale else None
            else:
                self.mark(pairs, norms.tolist(), micro, exact=exact)
        else:
            reduced = any(self.is_reduced(owner) for owner, _ in pairs)
            stage = Stage.GRAD_REDUCED if reduced else Stage.GRAD
            window.marks.append(Mark(stage, micro, exact=exact, trigger=True, value=total))

    def between_micro_steps(self) -> None:
        """
        Before a backward that accumulates onto gradients which the micro step before has already reduced: are those
        bad? Then what the coming reduction is handed is a peer's fault. One pass, only where people reduce each time.
        """
        window = self.scene.window
        earlier = window.current_micro_step
        if earlier not in window.synced_micro_steps:
            return
        grads = [local_part(grad) for owner, grad in self.held() if self.is_reduced(owner)]
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

    def local(self, pairs: Sequence[Pair], micro_step: int, *, exact: bool, exchange: int = LAST) -> bool:
        """
        Gradients that are still this rank's own, at a moment when one is known to be bad. CPU only.

        Returns: whether a bad one was found (and marked with stage grad).
        """
        if not pairs:
            return False
        norms = norms_of([local_part(grad) for _, grad in pairs]).tolist()
        return self.mark(pairs, norms, micro_step, exact=exact, own=True, exchange=exchange)

    def mark(
        self,
        pairs: Sequence[Pair],
        norms: Sequence[float],
        micro_step: int,
        *,
        exact: bool,
        own: bool = False,
        exchange: int = LAST,
    ) -> bool:
        """
        Mark the first bad one in backward order, this rank's own before those that a reduction may have made bad.

        Args:
            pairs, norms: gradients and their norms; only those with a bad norm are looked at again.
            own: no reduction has touched them yet.
            exchange: number in its micro step of the exchange that is about to carry them.

        Returns: whether one is bad.
        """
        models = self.scene.models
        norm_of = {id(owner): norm for (owner, _), norm in zip(pairs, norms, strict=True)}
        grad_of = {id(owner): grad for owner, grad in pairs}
        ordered = models.in_backward([owner for owner, _ in pairs])
        bad = [not math.isfinite(norm_of[id(owner)]) and not is_finite(grad_of[id(owner)]) for owner in ordered]
        if not any(bad):
            return False
        reduced = [not own and (self.is_reduced(owner) or self.scene.window.exchanged_gradients) for owner in ordered]
        first = next((i for i, flag in enumerate(bad) if flag and not reduced[i]), bad.index(True))
        # Where modules were not seen running (compiled ones), several bad parameters have no order: no name is a guess.
        known = sum(bad) == 1 or models.position(ordered[first]) != UNSEEN
        place = models.place(ordered[first]) if known else None
        wanted = [i for i, flag in enumerate(bad) if flag or any(bad[max(i - 1, 0) : i + 2])][:EVIDENCE_ROWS]
        self.scene.window.marks.append(
            Mark(
                Stage.GRAD_REDUCED if reduced[first] else Stage.GRAD,
                micro_step,
                exact=exact,
                trigger=True,
                order=models.backward_order(ordered[first], exchange),
                module=place.module if place else None,
                parameter=place.name if place else None,
                position=models.position(ordered[first]),
                evidence=[self._describe(ordered[i], grad_of[id(ordered[i])], micro_step) for i in wanted],
            )
        )
        return True

    def rename(self, mark: Mark, pairs: Sequence[Pair], norms: Sequence[float]) -> None:
        """
        Name `mark` after a parameter that the backward reached before the one it is named after: a reduction may carry
        it later, as FSDP2's root group does with a model's head.

        Args: as of `mark`.
        """
        models = self.scene.models
        bad = [(owner, grad) for (owner, grad), norm in zip(pairs, norms, strict=True) if not math.isfinite(norm)]
        for owner, grad in bad:
            position, place = models.position(owner), models.place(owner)
            if place is not None and mark.position < position != UNSEEN and not is_finite(grad):
                mark.module, mark.parameter, mark.position = place.module, place.name, position
                mark.evidence.insert(0, self._describe(owner, grad, mark.micro_step))

    def is_reduced(self, owner: torch.Tensor) -> bool:
        """Whether a wrapper reduces this parameter's gradient."""
        place = self.scene.models.place(owner)
        return place.reduced if place is not None else hasattr(owner, "to_local")

    def _describe(self, owner: torch.Tensor, grad: torch.Tensor, micro_step: int) -> TensorStatistics:
        place = self.scene.models.place(owner)
        return measure(
            grad,
            kind=TensorKind.GRAD,
            name=place.name if place else "unnamed parameter",
            module=place.module if place else None,
            micro_step=micro_step,
        )
