"""All observers of one guard, wired to each other, and the ballot that their marks make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from firstbad.agent.lanes import Ballot
from firstbad.agent.observers.buckets import BucketObserver
from firstbad.agent.observers.calls import CallObserver
from firstbad.agent.observers.canary import CanaryObserver
from firstbad.agent.observers.clearing import ClearingObserver
from firstbad.agent.observers.collectives import CollectiveObserver, hookable
from firstbad.agent.observers.compression import CompressionObserver
from firstbad.agent.observers.gradients import GradientObserver
from firstbad.agent.observers.losses import LossObserver
from firstbad.agent.observers.modules import ModuleObserver
from firstbad.agent.observers.norms import NormObserver
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.observers.parameters import ParameterObserver
from firstbad.agent.observers.pipeline import PipelineObserver
from firstbad.agent.observers.schedule import ScheduleObserver
from firstbad.agent.observers.sharded import ShardedObserver
from firstbad.agent.observers.shield import BufferShield
from firstbad.agent.steering.attached import AttachedOptimizers
from firstbad.agent.steering.lossscale import LossScale
from firstbad.agent.window import Mark, Window
from firstbad.schema import Stage


class Panel:
    """The observers of one guard. An observer that fails in `install` or later is off; the others go on."""

    def __init__(self, scene: Scene, attached: AttachedOptimizers, is_own: Callable[[Any], bool]) -> None:
        """
        Args:
            attached: the optimizers whose gradients are looked at.
            is_own: whether a process group is the agent's.
        """
        self.scene = scene
        self.autocast = False
        """Whether a forward ran under autocast so far."""
        self.shielding = False
        """Steps may be skipped, so buffers are kept."""
        self.gradients = GradientObserver(scene, attached.parameters)
        self.losses = LossObserver(scene, before=self._before_backward)
        self.parameters = ParameterObserver(scene)
        self.collectives = CollectiveObserver(scene, self.gradients, is_own)
        self.buckets = BucketObserver(scene, self.gradients, needed=not hookable())
        self.calls = CallObserver(scene, self.collectives.look, is_own, needed=not hookable())
        self.sharded = ShardedObserver(scene, self.gradients)
        self.pipeline = PipelineObserver(scene)
        self.norm = NormObserver(scene, self.gradients, attached.parameters)
        self.canary = CanaryObserver(scene, self._canary_sang)
        self.modules = ModuleObserver(scene, found=self._found, entered=self._entered, ran=self.canary.settle)
        self.schedule = ScheduleObserver(scene)
        self.clearing = ClearingObserver(scene, attached.parameters)
        self.shield = BufferShield(scene)
        self.compression = CompressionObserver(scene)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Every observer, in order of installation."""
        return (
            self.losses,
            self.modules,
            self.parameters,
            self.collectives,
            self.buckets,
            self.calls,
            self.sharded,
            self.pipeline,
            self.gradients,
            self.norm,
            self.canary,
            self.schedule,
            self.clearing,
            self.shield,
            self.compression,
        )

    def install(self) -> None:
        """Put every observer's hooks in place."""
        for observer in self.observers:
            try:
                observer.install()
            except Exception as error:
                observer.switch_off(error)

    def faults(self) -> tuple[str, ...]:
        """Names of the observers that are off after a fault of their own."""
        return tuple(observer.name for observer in self.observers if observer.fault is not None)

    def ballot(
        self, window: Window, *, step: int, rank: int, scaler: LossScale | None, floor: float
    ) -> tuple[Ballot, list[Mark]]:
        """
        The last look at the gradients, then this rank's words about the window. Waits for the device if there is one.

        Args:
            scaler: the loss scaler that stands before the step.
            floor: what its scale may not back off below.

        Returns: (ballot, bad marks in election order).
        """
        self.gradients.watch(self.gradients.before_update)()
        window.resolve()
        marks = window.bad_marks()
        if marks:
            self.parameters.watch(self.parameters.on_bad_step)()
            window.resolve()
            marks = window.bad_marks()
        stages = {mark.stage for mark in marks}
        if scaler is not None and stages & {Stage.GRAD, Stage.GRAD_REDUCED}:
            stages.add(Stage.SCALER)
        key = window.key(marks[0], rank) if marks else None
        scale = window.loss_scale if isinstance(window.loss_scale, float) else None
        at_floor = scaler is not None and scale is not None and scale <= floor
        told = window.trainer_step()
        ballot = Ballot(step, key, frozenset(stages), handed=window.handed, at_floor=at_floor, trainer_step=told)
        return ballot, marks

    def undo_forward(self) -> None:
        """A step is left out on all ranks: what its forward and backward left behind goes too."""
        self.shield.watch(self.shield.restore)()
        self.compression.watch(self.compression.forget)()

    def remove(self) -> None:
        """Take away what is not an attribute in `scene.patches`: hooks on process groups."""
        self.collectives.remove()

    def refresh(self) -> None:
        """Hook what scripts make or import late: process groups, the pipeline module. Cheap; before each backward."""
        self.collectives.watch(self.collectives.refresh)()
        self.pipeline.watch(self.pipeline.refresh)()

    def _before_backward(self, again: bool) -> None:
        self.refresh()
        self.buckets.watch(self.buckets.before_backward)()
        if again:
            self.gradients.watch(self.gradients.between_micro_steps)()

    def _found(self, root: nn.Module) -> None:
        self.collectives.watch(self.collectives.found)(root)
        self.buckets.watch(self.buckets.found)(root)
        self.sharded.watch(self.sharded.found)(root)

    def _entered(self, root: nn.Module) -> None:
        self.parameters.before_forward(root)
        if self.shielding:
            self.shield.watch(self.shield.before_forward)(root)
        device = next((p.device.type for p in root.parameters()), "cpu")
        self.autocast = self.autocast or torch.is_autocast_enabled(device)

    def _canary_sang(self, micro_step: int) -> None:
        window = self.scene.window
        if any(mark.stage is Stage.GRAD and mark.exact and mark.micro_step == micro_step for mark in window.marks):
            return
        # Only where this micro step's gradients are still our own may they be read; after a reduction they are not.
        own = micro_step not in window.synced_micro_steps
        if not (own and self.gradients.local(self.gradients.held(), micro_step, exact=True)):
            window.marks.append(Mark(Stage.GRAD, micro_step, exact=True, trigger=True))
