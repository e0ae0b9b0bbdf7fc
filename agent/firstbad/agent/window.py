"""
The step window: what a rank has seen between two decisions.

It opens with the first forward or backward after a decision and closes when the next decision is taken. Observers put
marks into it; `Window.nominate` turns the marks into this rank's candidate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from firstbad.agent.batches import Batch
from firstbad.agent.lanes import MAX_ORDER, Key
from firstbad.agent.statistics import TensorStatistics
from firstbad.schema import Stage

HELD = 4096
"""Sightings remembered of a script that calls backward and never steps."""


@dataclass(slots=True)
class Mark:
    """
    One sighting of a possibly bad value.

    `value` is not finite iff the sighting is bad; a tensor there is read at the decision, so nothing waits for a
    device before. `trigger` marks make the step bad by themselves (a loss that backward was called on, a gradient);
    the others (input, forward, param) only tell where it began: a model may take NaN inputs by design and mask them.
    """

    stage: Stage
    micro_step: int
    exact: bool
    trigger: bool
    value: float | torch.Tensor = math.nan
    order: int = MAX_ORDER
    module: str | None = None
    parameter: str | None = None
    position: int = -1
    """Place in the forward of the named parameter."""
    evidence: list[TensorStatistics] = field(default_factory=list)
    accumulated: bool = False
    """The value includes what earlier micro steps of the window left in `.grad`."""


@dataclass(slots=True)
class Window:
    """This rank's view of one attempted update."""

    micro_steps: int = 0
    current_micro_step: int = 0
    """The micro step whose backward is running or ran last, from 0."""
    losses: list[tuple[int, float | torch.Tensor]] = field(default_factory=list)
    """(micro step, value that backward was called on, divided by the loss scale)."""
    batches: dict[int, Batch] = field(default_factory=dict)
    pending: Batch | None = None
    """Told by the script for the micro step whose backward has not begun."""
    marks: list[Mark] = field(default_factory=list)
    grad_norm: float | torch.Tensor | None = None
    """The trainer's own pre-clip norm of all gradients."""
    grad_sq: float | None = None
    """Sum of squares over this rank's gradients, when the guard or the trainer took it."""
    synced_micro_steps: set[int] = field(default_factory=set)
    """Micro steps in which a gradient reduction was seen."""
    guard_seconds: float = 0.0
    """Host time that the agent took on the training thread, peers' time in the decision included."""
    lr_stepped: bool = False
    loss_scale: float | torch.Tensor | None = None
    loss_scale_after: float | None = None
    """What a bad step's decision orders for the next one."""
    gradients_scaled: bool = False
    """A loss scaler has multiplied the loss, and nobody has divided the gradients yet."""
    gradients_checked: bool = False
    """A finite norm over every gradient is already there."""
    kept_from: int = 0
    """First micro step whose gradients the script still holds; those before it were thrown away with no step."""
    handed: bool = False
    """Peers' activations or their gradients flowed through this rank's forward or backward."""
    exchanged_gradients: bool = False
    """The script itself exchanged tensors between its backward and its step: `.grad` may be a peer's work."""
    every_micro_step_synced: bool = True
    """Every earlier micro step had its gradients reduced, so a bad input of a reduction is of this one."""

    def begin_backward(self, chunk: int | None = None) -> int:
        """
        Count a root backward call.

        Args:
            chunk: its micro step where a pipeline says so.

        Returns: its micro step, from 0.
        """
        batch, self.pending = self.pending, None
        # A norm or a look of before knows nothing of what this backward adds.
        self.gradients_checked, self.grad_norm, self.grad_sq = False, None, None
        if self.micro_steps > self.kept_from and self.current_micro_step not in self.synced_micro_steps:
            self.every_micro_step_synced = False
        micro = self.micro_steps if chunk is None else chunk
        if batch is not None:
            if batch.micro_step is not None:
                micro = batch.micro_step
            self.batches[micro] = batch
        self.micro_steps = max(self.micro_steps, micro + 1)
        self.current_micro_step = micro
        return micro

    @property
    def kept_micro_steps(self) -> int:
        """Backward calls whose gradients the script still holds."""
        return self.micro_steps - self.kept_from

    @property
    def coming_micro_step(self) -> int:
        """The micro step that a forward running now belongs to."""
        if self.pending is not None and self.pending.micro_step is not None:
            return self.pending.micro_step
        return self.micro_steps

    def throw_away(self) -> None:
        """
        The script has cleared every gradient without a step: it left a bad update out itself, or it put the gradients
        aside to combine them. What was seen so far no longer makes the step bad; should a step be bad all the same,
        it tells where that began.
        """
        self.gradients_checked, self.grad_norm, self.grad_sq = False, None, None
        self.kept_from, self.every_micro_step_synced = self.micro_steps, True
        self.synced_micro_steps.clear()
        if max(len(self.losses), len(self.batches), len(self.marks)) > HELD:
            self.losses.clear()
            self.batches.clear()
            self.marks.clear()

    def close(self) -> None:
        """No more backward comes: gradients put aside and given back, with no backward since, are the update's own."""
        if self.kept_from == self.micro_steps:
            self.kept_from = 0

    def resolve(self) -> None:
        """Read every tensor that marks and losses hold, in one transfer. Waits for the device when there is any."""
        holders = [mark for mark in self.marks if isinstance(mark.value, torch.Tensor)]
        losses = [index for index, (_, value) in enumerate(self.losses) if isinstance(value, torch.Tensor)]
        tensors = [mark.value for mark in holders] + [self.losses[index][1] for index in losses]
        extras = [name for name in ("grad_norm", "loss_scale") if isinstance(getattr(self, name), torch.Tensor)]
        tensors += [getattr(self, name) for name in extras]
        if not tensors:
            return
        device = next(t.device for t in tensors if isinstance(t, torch.Tensor))
        flat = [t.detach().reshape(()).to(device, torch.float64) for t in tensors if isinstance(t, torch.Tensor)]
        values = torch.stack(flat).tolist()
        for mark, value in zip(holders, values, strict=False):
            mark.value = value
        for index, value in zip(losses, values[len(holders) :], strict=False):
            self.losses[index] = (self.losses[index][0], value)
        for name, value in zip(extras, values[len(holders) + len(losses) :], strict=True):
            setattr(self, name, value)

    def bad_marks(self) -> list[Mark]:
        """
        The marks that count, in election order. Call `resolve` first.

        Sightings that are not triggers count only where a trigger of this rank agrees: in the same micro step, or in
        any when the trigger does not know its own.
        """
        bad = [mark for mark in self.marks if isinstance(mark.value, float) and not math.isfinite(mark.value)]
        if not any(mark.trigger and mark.micro_step >= self.kept_from for mark in bad):
            return []
        bad = self._without_echoes(bad)
        # After a reduction a bad gradient may be a peer's: it says nothing about this rank's own inputs.
        triggers = [mark for mark in bad if mark.trigger and mark.stage is not Stage.GRAD_REDUCED]
        exact = {mark.micro_step for mark in triggers if mark.exact}
        anywhere = any(not mark.exact for mark in triggers)
        counted = [mark for mark in bad if mark.trigger or mark.micro_step in exact or anywhere]
        # Sorting is stable: of marks of one moment the one that was made first is the cause of the others.
        return sorted(counted, key=lambda mark: self.key(mark, rank=0).moment)

    @staticmethod
    def _without_echoes(bad: list[Mark]) -> list[Mark]:
        """
        Leave out reductions whose input was bad only because an earlier micro step's reduction had spread a peer's
        bad value into this rank's accumulated gradients.
        """
        spread = min((m.micro_step for m in bad if m.stage is Stage.GRAD_REDUCED and m.exact), default=None)
        if spread is None:
            return bad
        return [m for m in bad if not (m.stage is Stage.GRAD and m.accumulated and m.micro_step > spread)]

    def key(self, mark: Mark, rank: int) -> Key:
        """The election key of a mark: an unknown micro step enters as the window's last, flagged inexact."""
        micro = mark.micro_step if mark.exact else max(self.micro_steps - 1, 0)
        return Key(micro, mark.stage, not mark.exact, mark.order, rank)

    def loss(self) -> float | None:
        """Sum of what backward was called on; NaN stays NaN; None when there was none."""
        values = [value for micro, value in self.losses if micro >= self.kept_from and isinstance(value, float)]
        return math.fsum(values) if values and all(map(math.isfinite, values)) else (sum(values) if values else None)

    def loss_of(self, micro_step: int) -> float | None:
        """The loss of one micro step; None when there was none."""
        values = [value for micro, value in self.losses if micro == micro_step and isinstance(value, float)]
        return sum(values) if values else None

    def trainer_step(self) -> int | None:
        """The trainer's own step, as told last; None when it was not told."""
        told = [batch.trainer_step for batch in self.batch_list() if batch.trainer_step is not None]
        return told[-1] if told else None

    def batch_list(self) -> list[Batch]:
        """What was told about the micro steps whose gradients were kept, in their order."""
        return [self.batches[micro] for micro in sorted(self.batches) if micro >= self.kept_from]
