"""
The fixed point of a step: last look at the gradients, ballot, one all_reduce, ruling, events on disk, then apply, skip
or stop. Everything on the training thread is host arithmetic; the only waits are the collective and, on a bad step, the
journal (at most 1 s).
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from firstbad.agent.context import CodeOrigin
from firstbad.agent.decision import Decision
from firstbad.agent.errors import StepMismatch
from firstbad.agent.finiteness import scan
from firstbad.agent.incarnation import Incarnation
from firstbad.agent.lanes import Ballot, Count
from firstbad.agent.observers.panel import Panel
from firstbad.agent.steering.attached import AttachedOptimizers
from firstbad.agent.steering.lossscale import LossScale
from firstbad.agent.streak import Streak
from firstbad.agent.whereabouts import by_step
from firstbad.agent.window import Mark, Window
from firstbad.schema import Action

logger = logging.getLogger("firstbad.agent")


class FixedPoint:
    """
    Takes the decision of each step window together with the other ranks, and seals its row.

    Args:
        panel: what this rank has seen.
        attached: the optimizers that the decision covers.
        meet: makes the incarnation of a script that has no process group.
    """

    def __init__(self, panel: Panel, attached: AttachedOptimizers, *, meet: Callable[[], Incarnation]) -> None:
        self._panel = panel
        self._scene = panel.scene
        self._attached = attached
        self._meet = meet
        self.life: Incarnation | None = None
        self.closed = False
        """The run end is written: nothing is decided any more."""
        self._decision: Decision | None = None
        self._streak = Streak()
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Optimizers that have stepped under the last decision."""
        self._row: tuple[Decision, Window, list[Mark], float | None, bool] | None = None
        self._steered = True
        self._origin = CodeOrigin()
        self._told: set[tuple[str, str]] = set()
        self._told_apart = False

    def enter(self, life: Incarnation | None) -> None:
        """Begin an incarnation: its steps count from 0."""
        self.life, self._decision, self._streak = life, None, Streak()
        if life is not None:
            life.watchdog.start(lambda: (life.step, self._scene.window.micro_steps))
        self._stepped.clear()

    def begin_record(self) -> None:
        """Write the run start, once, when models and optimizers are known."""
        if self.life is not None:
            self.life.start(
                self._scene,
                self._attached.all(),
                origin=self._origin,
                autocast=self._panel.autocast,
                steered=self._steered,
            )

    def decide(self, optimizer: Optimizer, *, scaler: LossScale | None = None) -> bool:
        """
        Take the decision of the open window, or reuse it for a further optimizer of the same step.

        Collective over all ranks when it is taken. A step with no backward since the last decision reuses it, unless
        this very optimizer has stepped under it already: then the rank had no data this time and takes part with
        nothing to report. Before the first decision it is no step at all (state made by a checkpoint loader).

        Raises:
            RunStopped, StepMismatch, ConsensusFailed: on every rank that takes part.
        """
        if self.closed or not self._scene.awake:
            return True
        window = self._scene.window
        if window.micro_steps == 0 and (self._decision is None or optimizer not in self._stepped):
            self._stepped.add(optimizer)
            return self._decision is None or self._decision.action is not Action.SKIP
        return self._take(window, optimizer, scaler)

    def shadow(self) -> None:
        """
        Take part in a decision of ranks that still have data, with nothing to report. Collective over all ranks.

        Raises: as of `decide`.
        """
        if not self.closed and self._scene.awake and self.life is not None:
            self._take(self._scene.window, None, None)

    def _take(self, window: Window, optimizer: Optimizer | None, scaler: LossScale | None) -> bool:
        begun = time.perf_counter()
        self.seal_row(None)
        life = self.life
        if life is None:
            self.enter(life := self._meet())
        if scaler is not None:
            self._see_scale(scaler)
        window.close()
        ballot, marks = self._ballot(window, life, scaler)
        decision = self._count(ballot, life)
        if decision.bad is not None and scaler is not None and isinstance(window.loss_scale, float):
            lower = max(window.loss_scale * scaler.backoff_factor, life.settings.min_loss_scale)
            window.loss_scale_after = lower if decision.backs_off else window.loss_scale
        learning_rate = _learning_rate(optimizer) if optimizer is not None else None
        self.begin_record()
        life.recorder.events(decision, window, marks, learning_rate, self._scene.checkpoint_parent)
        window.guard_seconds += time.perf_counter() - begun
        self._row = (decision, window, marks, learning_rate, ballot.degraded)
        self._next_window(decision, life, optimizer)
        if decision.action is Action.STOP:
            self._stop(decision, life)
        return decision.action is Action.APPLY

    def settled(self, optimizer: Optimizer, *, applied: bool | None) -> None:
        """Clear the gradients of a skipped step; seal the row with what happened to the update."""
        del optimizer
        if applied is False and self._decision is not None and self._decision.action is Action.SKIP:
            self._attached.clear_gradients()
        self.seal_row(applied)

    def unprotected(self, optimizer: Optimizer, why: str, *, recorded: bool = False) -> None:
        """Say once that an optimizer's step, or a part of it, is not protected; its backwards belong to no decision."""
        self._scene.window = Window()
        name = type(optimizer).__name__
        if (name, why) not in self._told:
            self._told.add((name, why))
            rest = "" if recorded else ". Such steps are neither decided nor recorded"
            logger.warning("firstbad: steps of %s are not protected: %s%s", name, why, rest)

    def backs_off(self) -> bool:
        """Whether the last decision orders the loss scale to back off."""
        return self._decision is not None and self._decision.backs_off

    def unscaled(self) -> None:
        """A scaler has divided the gradients by the loss scale."""
        self._scene.window.gradients_scaled = False

    def scaled_loss(self, outputs: Any, result: Any) -> None:
        """A loss scaler has multiplied the loss: backward will be called on `result`."""
        self._scene.window.gradients_scaled = True
        self._panel.losses.watch(self._panel.losses.scaled)(outputs, result)

    def seal_row(self, applied: bool | None) -> None:
        """Hand the row of the last decision to the journal, once."""
        if self._row is None or self.life is None:
            return
        (decision, window, marks, learning_rate, degraded), self._row = self._row, None
        try:
            self.life.recorder.row(
                decision,
                window,
                marks,
                now=time.monotonic(),
                learning_rate=learning_rate,
                applied=applied,
                degraded=degraded,
            )
        except Exception as error:
            logger.warning(
                "firstbad: the row of step %d could not be written (%s)", decision.step, error, exc_info=error
            )

    def _ballot(self, window: Window, life: Incarnation, scaler: LossScale | None) -> tuple[Ballot, list[Mark]]:
        """Neutral and degraded when our own code fails, for the collective must be called anyway."""
        try:
            floor = life.settings.min_loss_scale
            return self._panel.ballot(window, step=life.step, rank=life.consensus.rank, scaler=scaler, floor=floor)
        except Exception as error:
            logger.warning("firstbad: this rank's guard failed at step %d (%s)", life.step, error, exc_info=error)
            return Ballot(life.step, None, frozenset(), degraded=True), []

    def _count(self, ballot: Ballot, life: Incarnation) -> Decision:
        count = Count.of(life.consensus.decide(ballot.lanes(), life.watchdog))
        if count.lowest_step != count.highest_step:
            steps = life.consensus.steps(ballot.step)
            who = f"rank {life.consensus.rank} decides step {ballot.step}" if steps is None else by_step(steps)
            raise StepMismatch(
                f"ranks are in different steps: {who}; lowest {count.lowest_step}, highest {count.highest_step}. A "
                "rank has left out or repeated an optimizer step (a local `if isnan(loss): continue`, or uneven "
                "data); this step's update was not applied",
                lowest=count.lowest_step,
                highest=count.highest_step,
            )
        if count.trainer_steps_differ and not self._told_apart:
            self._tell_apart(ballot, life)
        return life.bench.decide(life.step, count, steered=self._steered)

    def _tell_apart(self, ballot: Ballot, life: Incarnation) -> None:
        """Collective: every rank has read the same count."""
        self._told_apart = True
        steps = life.consensus.steps(-1 if ballot.trainer_step is None else ballot.trainer_step)
        if steps is not None and life.consensus.rank == 0:
            logger.warning(
                "firstbad: ranks are in different steps of the trainer's own count (batch(step=...)): %s. A rank has "
                "left out or repeated an iteration, so replicas train on gradients of different steps and drift apart; "
                "the ledger's trainer_step shows from where on",
                by_step(steps, missing=-1),
            )

    def _next_window(self, decision: Decision, life: Incarnation, optimizer: Optimizer | None) -> None:
        if decision.bad is not None and life.consensus.rank == decision.bad.key.rank:
            logger.warning("firstbad: %s", decision.sentence())
        if decision.action is Action.SKIP and life.settings.lr_on_skip == "hold":
            self._panel.schedule.hold()
        if decision.action in (Action.SKIP, Action.STOP):
            self._panel.undo_forward()
        self._decision = decision
        self._streak.see(decision, self._scene.checkpoint_parent)
        self._stepped.clear()
        if optimizer is not None:
            self._stepped.add(optimizer)
        life.step += 1
        self._scene.window = Window()
        self._scene.previous_step_suspect = decision.bad is not None and decision.action is Action.APPLY

    def _see_scale(self, scaler: LossScale) -> None:
        value = scaler.value
        self._scene.window.loss_scale = float(value) if value is not None and value.device.type == "cpu" else value
        if self._steered and not scaler.steerable:
            self._steered = False
            logger.warning(
                "firstbad: torch %s keeps its GradScaler's state where firstbad does not know it, so bad steps are "
                "recorded, but whether an update is left out is the scaler's own decision on each rank",
                torch.__version__,
            )

    def _stop(self, decision: Decision, life: Incarnation) -> None:
        self.seal_row(False)
        finiteness = scan(self._attached.all(), self._scene.models)
        raise self._streak.stop(decision, life.meeting.run_id, finiteness, self._scene.checkpoint_parent)


def _learning_rate(optimizer: Optimizer) -> float | None:
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" else None
    return float(rate) if isinstance(rate, int | float) else None
