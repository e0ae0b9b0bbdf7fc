"""
The guard of one rank: it opens and closes the step window, takes the collective decision, and steers the update.

Order within an optimizer step: last look at the gradients, ballot, one all_reduce, ruling, events on disk, then apply,
skip or stop. Everything on the training thread is host arithmetic; the only waits are the collective and, on a bad
step, the journal (at most 1 s).
"""

from __future__ import annotations

import atexit
import functools
import logging
import sys
import time
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from firstbad.agent import identity
from firstbad.agent.batches import describe
from firstbad.agent.consensus import Consensus, Meeting, Terms
from firstbad.agent.context import CodeOrigin, describe_rank
from firstbad.agent.decision import Bench, Decision
from firstbad.agent.errors import AgentError, RunStopped, StepMismatch
from firstbad.agent.incidents import IncidentBook
from firstbad.agent.journal import Journal, prepare
from firstbad.agent.lanes import LAYOUT, Ballot, Count
from firstbad.agent.observers.canary import CanaryObserver
from firstbad.agent.observers.gradients import GradientObserver, NormObserver, ReductionObserver
from firstbad.agent.observers.losses import LossObserver
from firstbad.agent.observers.modules import DISCOVERY_WINDOWS, ModuleObserver
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.observers.parameters import ParameterObserver
from firstbad.agent.observers.schedule import ScheduleObserver
from firstbad.agent.policy import Budget
from firstbad.agent.recorder import Recorder
from firstbad.agent.settings import Settings, SettingsError
from firstbad.agent.steering import Steering
from firstbad.agent.window import Mark, Window
from firstbad.schema import Action, Outcome, Stage

logger = logging.getLogger("firstbad.agent")

_active: Guard | None = None


def active() -> Guard | None:
    """The guard of this process; None when there is none."""
    return _active


class Guard:
    """
    Watches a training process and decides every optimizer step together with the other ranks.

    Make one in every rank, before the model runs; around init_process_group either order is fine, but the same on all
    ranks. Making it wraps torch functions of this process (optimizer steps, backward, norms); `detach` undoes that.

    Args:
        settings: where to write and what to do; default: environment and [tool.firstbad].
        refusal: a reason why this rank cannot run; with it every rank raises SettingsMismatch when they meet.
        at_exit: write the run end when the interpreter ends; the launcher, which knows more, does it itself.
        **overrides: single settings by name, as `policy="observe"`; they win over the environment.

    Raises:
        SettingsError: a setting is bad; every problem is listed.
        SettingsMismatch: ranks disagree about the settings (raised where the ranks meet).
        AgentError: this process has a guard already.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        refusal: str | None = None,
        at_exit: bool = True,
        **overrides: Any,
    ) -> None:
        global _active
        if _active is not None:
            raise AgentError("this process has a firstbad guard already: the launcher made one, or Guard() ran twice")
        self.settings, self._refusal = _resolve(settings, refusal, overrides)
        self.scene = Scene()
        self.steering = Steering(self, self.scene.patches)
        self._gradients = GradientObserver(self.scene, self.steering.parameters)
        self._losses = LossObserver(self.scene, self._gradients.watch(self._gradients.between_micro_steps))
        self._parameters = ParameterObserver(self.scene)
        self._reductions = ReductionObserver(self.scene, self._gradients)
        self._norm = NormObserver(self.scene, self._gradients, self.steering.parameters)
        self._canary = CanaryObserver(self.scene, self._canary_sang)
        self._modules = ModuleObserver(
            self.scene, found=self._reductions.found, entered=self._entered, ran=self._canary.settle
        )
        self._schedule = ScheduleObserver(self.scene)
        self._consensus: Consensus | None = None
        self._meeting: Meeting | None = None
        self._recorder: Recorder | None = None
        self._bench: Bench | None = None
        self._step = 0
        self._decision: Decision | None = None
        self._row: tuple[Decision, Window, list[Mark], float | None, bool] | None = None
        self._steered = True
        self._autocast = False
        self._finished = False
        self._origin = CodeOrigin()
        self._told_unprotected: set[str] = set()
        _active = self
        self._install()
        if at_exit:
            _finish_at_exit(self)

    # -- what a script calls

    def batch(
        self,
        *,
        shard_id: object = None,
        sample_ids: object = None,
        dataset_version: object = None,
        valid_tokens: object = None,
        step: object = None,
        global_batch_id: object = None,
        micro_step: object = None,
    ) -> None:
        """
        Say which data the coming micro step uses. Call it before the micro step's backward; the latest call counts.

        Every argument is optional. Sequences, single values and CPU tensors are taken; a tensor on an accelerator
        counts as not told, since reading it would wait for the device. Never raises.

        Args:
            shard_id: shard or shards (file, folder, table) of the samples.
            sample_ids: ids of the samples on this rank, int or str.
            dataset_version: name of the dataset's state.
            valid_tokens: labels that count in the loss of this micro-batch, on this rank.
            step: the trainer's own step count.
            global_batch_id: the trainer's name of the global batch.
            micro_step: position in the accumulation, from 0, where it is not the number of backward calls so far.
        """
        if not self.scene.awake:
            return
        try:
            self.scene.window.pending = describe(
                shard_id=shard_id,
                sample_ids=sample_ids,
                dataset_version=dataset_version,
                valid_tokens=valid_tokens,
                step=step,
                global_batch_id=global_batch_id,
                micro_step=micro_step,
            )
        except Exception as error:
            logger.warning("firstbad: batch() was given something it cannot read (%s); not recorded", error)

    def finish(self, outcome: Outcome, exit_code: int | None = None, error: BaseException | None = None) -> None:
        """
        Write the run end and close the journal. Not collective; never raises; only the first call counts.

        Args:
            outcome: how the script ended.
            exit_code: what the process is about to return, when known.
            error: the exception that left the script, when one did.
        """
        if self._finished or not self.scene.awake:
            return
        self._finished = True
        try:
            if self._recorder is None and (error is not None or self._consensus is not None):
                self._meet_alone()
            self._seal_row(None)
            if self._recorder is not None:
                self._start(self._recorder)
                off = tuple(observer.name for observer in self._observers() if observer.fault is not None)
                self._recorder.end(
                    self.scene.window, outcome=outcome, exit_code=exit_code, error=error, observers_off=off
                )
        except Exception as fault:
            logger.warning("firstbad: the run end could not be written (%s)", fault, exc_info=fault)

    def detach(self) -> None:
        """Put every wrapped function back; the guard then only waits for `finish`."""
        global _active
        self._modules.end_discovery()
        self._reductions.remove()
        self.scene.patches.restore()
        if _active is self:
            _active = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        del kind, traceback
        stopped = Outcome.STOPPED if isinstance(error, RunStopped) else Outcome.FAILED
        self.finish(Outcome.FINISHED if error is None else stopped, error=error)
        self.detach()

    # -- installation and the meeting of the ranks

    def _observers(self) -> list[Observer]:
        return [
            self._losses,
            self._modules,
            self._parameters,
            self._reductions,
            self._gradients,
            self._norm,
            self._canary,
            self._schedule,
        ]

    def _install(self) -> None:
        self.steering.install()
        for observer in self._observers():
            try:
                observer.install()
            except Exception as error:
                observer.switch_off(error)
        if not dist.is_available():
            return
        if dist.is_initialized():
            self._meet()
            return
        original = dist.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.scene.awake and not self._finished and (self._consensus is None or self._consensus.alone_by_need):
                self._leave_alone()
                self._meet()
            return result

        self.scene.patches.replace(dist, "init_process_group", init_process_group)
        self.scene.patches.replace(dist.distributed_c10d, "init_process_group", init_process_group)

    def _meet(self) -> None:
        """Collective where there is a process group: agree on settings and identity, open the journal."""
        self._consensus = Consensus.form()
        settings = self.settings
        try:
            prepare(settings.journal, identity.host_name())
        except OSError as error:
            self._refusal = (
                self._refusal or f"the journal folder {settings.journal} cannot be used ({error}); see --journal"
            )
        terms = Terms(
            f"{LAYOUT}, firstbad {identity.agent_version()}, policy {settings.policy.value}, max-consecutive-skips "
            f"{settings.max_consecutive_skips}, max-skip-ratio {settings.max_skip_ratio}",
            self._refusal,
        )
        run_id = identity.resolve_run_id(settings.run_id) or f"run-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        self._meeting = self._consensus.meet(terms, run_id, identity.new_incarnation())
        self._open(self._consensus, self._meeting)

    def _meet_alone(self) -> None:
        """An identity without the others: the script failed before the ranks could meet."""
        consensus = self._consensus = self._consensus or Consensus.alone()
        run_id = identity.resolve_run_id(self.settings.run_id) or "run-that-did-not-start"
        self._meeting = Meeting(run_id, identity.new_incarnation(), (0,) * (consensus.rank + 1), None)
        self._open(consensus, self._meeting)

    def _leave_alone(self) -> None:
        """Steps taken before there was a process group were an incarnation of their own; end it."""
        if self._recorder is None:
            return
        self._seal_row(None)
        self._recorder.end(Window(), outcome=Outcome.FINISHED, exit_code=None, error=None, observers_off=())
        self._recorder, self._decision, self._step = None, None, 0

    def _open(self, consensus: Consensus, meeting: Meeting) -> None:
        journal = Journal(
            self.settings.journal, run_id=meeting.run_id, incarnation=meeting.incarnation, rank=consensus.rank
        )
        self._recorder = Recorder(journal, self.settings, consensus.rank, consensus.world_size, meeting.hosts)
        budget = Budget(self.settings.policy, self.settings.max_consecutive_skips, self.settings.max_skip_ratio)
        self._bench = Bench(budget, IncidentBook(meeting.run_id, meeting.incarnation), consensus.world_size)

    def _start(self, recorder: Recorder) -> None:
        """Write the run start, once: before the first decision's events, when models and optimizers are known."""
        if recorder.static is None and self._consensus is not None and self._meeting is not None:
            recorder.start(
                *describe_rank(
                    self.settings,
                    self._consensus,
                    self._meeting,
                    self.scene,
                    self.steering.optimizers,
                    origin=self._origin,
                    autocast=self._autocast,
                    steered=self._steered,
                )
            )

    # -- called by observers

    def _entered(self, root: nn.Module) -> None:
        self._parameters.before_forward(root)
        device = next((p.device.type for p in root.parameters()), "cpu")
        self._autocast = self._autocast or torch.is_autocast_enabled(device)

    def _canary_sang(self, micro_step: int) -> None:
        window = self.scene.window
        if any(mark.stage is Stage.GRAD and mark.exact and mark.micro_step == micro_step for mark in window.marks):
            return
        # Only where this micro step's gradients are still our own may they be read; after a reduction they are not.
        own = micro_step not in window.synced_micro_steps
        if not (own and self._gradients.local(micro_step, exact=True)):
            window.marks.append(Mark(Stage.GRAD, micro_step, exact=True, trigger=True))

    # -- called by steering: the fixed point

    def decide(self, optimizer: Optimizer, *, scaler: GradScaler | None) -> bool:
        """
        Take the decision of the open window, or reuse it for a further optimizer of the same step.

        Collective over all ranks when it is taken. A step with no backward since the last decision is no step.

        Raises:
            RunStopped, StepMismatch, ConsensusFailed: on every rank that takes part.
        """
        if self._finished or not self.scene.awake:
            return True
        window = self.scene.window
        if window.micro_steps == 0:
            return self._decision is None or self._decision.action is not Action.SKIP
        begun = time.perf_counter()
        self._seal_row(None)
        if self._recorder is None:
            self._meet()
        if scaler is not None:
            self._observe_only(scaler)
        ballot, marks = self._ballot(window, scaler)
        decision = self._count(ballot)
        learning_rate = _learning_rate(optimizer)
        recorder = self._recorder
        assert recorder is not None  # noqa: S101 - _meet has made it
        self._start(recorder)
        recorder.events(decision, window, marks, learning_rate, self.scene.checkpoint_parent)
        window.guard_seconds += time.perf_counter() - begun
        self._row = (decision, window, marks, learning_rate, ballot.degraded)
        self._next_window(decision)
        if decision.action is Action.STOP:
            self._stop(decision)
        return decision.action is Action.APPLY

    def settled(self, optimizer: Optimizer, *, applied: bool | None) -> None:
        """Clear the gradients of a skipped step; seal the row with what happened to the update."""
        del optimizer
        if applied is False and self._decision is not None and self._decision.action is Action.SKIP:
            self.steering.clear_gradients()
        self._seal_row(applied)

    def unprotected(self, optimizer: Optimizer, why: str) -> None:
        """Say once that an optimizer steps without protection."""
        self.scene.window = Window()  # its backwards belong to no decision
        name = type(optimizer).__name__
        if name not in self._told_unprotected:
            self._told_unprotected.add(name)
            logger.warning(
                "firstbad: steps of %s are not protected: %s. They are neither decided nor recorded", name, why
            )

    def scaled_loss(self, outputs: Any, result: Any) -> None:
        """A loss scaler has multiplied the loss: backward will be called on `result`."""
        self._losses.watch(self._losses.scaled)(outputs, result)

    # -- parts of a decision

    def _ballot(self, window: Window, scaler: GradScaler | None) -> tuple[Ballot, list[Mark]]:
        """This rank's words; neutral and degraded when our own code fails, for the collective must be called anyway."""
        rank = self._consensus.rank if self._consensus else 0
        try:
            self._gradients.watch(self._gradients.before_update)()
            window.resolve()
            marks = window.bad_marks()
            if marks:
                self._parameters.watch(self._parameters.on_bad_step)()
                window.resolve()
                marks = window.bad_marks()
            stages = {mark.stage for mark in marks}
            if scaler is not None and stages & {Stage.GRAD, Stage.GRAD_REDUCED}:
                stages.add(Stage.SCALER)
            key = window.key(marks[0], rank) if marks else None
            return Ballot(self._step, key, frozenset(stages)), marks
        except Exception as error:
            logger.warning("firstbad: this rank's guard failed at step %d (%s)", self._step, error, exc_info=error)
            return Ballot(self._step, None, frozenset(), degraded=True), []

    def _count(self, ballot: Ballot) -> Decision:
        assert self._consensus is not None and self._bench is not None  # noqa: S101, PT018 - _meet has made them
        count = Count.of(self._consensus.decide(ballot.lanes()))
        if count.lowest_step != count.highest_step:
            raise StepMismatch(
                f"ranks are in different steps: rank {self._consensus.rank} decides step {ballot.step}, the ranks' "
                f"lowest is {count.lowest_step} and their highest {count.highest_step}. A rank has left out or "
                "repeated an optimizer step (a local `if isnan(loss): continue`, or uneven data); this step's update "
                "was not applied",
                lowest=count.lowest_step,
                highest=count.highest_step,
            )
        return self._bench.decide(self._step, count, steered=self._steered)

    def _next_window(self, decision: Decision) -> None:
        if decision.bad is not None:
            self._tell(decision)
        self._decision = decision
        self._step += 1
        self.scene.window = Window()
        self.scene.previous_step_suspect = decision.bad is not None and decision.action is Action.APPLY
        if self._step == DISCOVERY_WINDOWS:
            self._modules.end_discovery()

    def _observe_only(self, scaler: GradScaler) -> None:
        """A loss scaler makes its own local decision, which this version records but does not steer."""
        window = self.scene.window
        scale = getattr(scaler, "_scale", None)
        if isinstance(scale, torch.Tensor):
            window.loss_scale = scale.detach().clone()
        if self._steered:
            self._steered = False
            self._norm.trusted = False
            logger.warning(
                "firstbad: the script uses a GradScaler, so it is observed and not steered: bad steps are recorded, "
                "but whether an update is left out is the scaler's own decision on each rank"
            )

    def _tell(self, decision: Decision) -> None:
        bad = decision.bad
        if bad is None or self._consensus is None or self._consensus.rank != bad.key.rank:
            return
        where = "every rank" if bad.offender_rank is None else f"rank {bad.offender_rank}"
        micro = "unknown" if bad.micro_step is None else bad.micro_step
        logger.warning(
            "firstbad: step %d is bad: first seen at %s, micro step %s, stage %s -> %s (%s)",
            decision.step, where, micro, bad.key.stage.label, decision.action.value, bad.ruling.reason,
        )  # fmt: skip

    def _stop(self, decision: Decision) -> None:
        bad = decision.bad
        assert bad is not None  # noqa: S101 - only bad steps stop
        self._seal_row(False)
        where = "every rank" if bad.offender_rank is None else f"rank {bad.offender_rank}"
        raise RunStopped(
            f"firstbad stopped the run before the update of step {decision.step}: {bad.ruling.reason}. First seen at "
            f"{where}, stage {bad.key.stage.label}; last good step {bad.last_good_step}. Next: firstbad show "
            f"{self._meeting.run_id if self._meeting else 'RUN'} {decision.step}",
            step=decision.step,
            event_id=bad.membership.event_id,
            last_good_step=bad.last_good_step,
        )

    def _seal_row(self, applied: bool | None) -> None:
        """Hand the row of the last decision to the journal, once."""
        if self._row is None or self._recorder is None:
            return
        (decision, window, marks, learning_rate, degraded), self._row = self._row, None
        try:
            self._recorder.row(
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


def _resolve(settings: Settings | None, refusal: str | None, overrides: dict[str, Any]) -> tuple[Settings, str | None]:
    """Settings, or the refusal that every rank hears when a process group is there already."""
    try:
        if settings is None or overrides:
            settings = Settings.from_environment(settings, **overrides)
        return settings, refusal
    except SettingsError as error:
        if dist.is_available() and dist.is_initialized():
            return Settings(), str(error)
        raise


def _learning_rate(optimizer: Optimizer) -> float | None:
    rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
    if isinstance(rate, torch.Tensor):
        return float(rate) if rate.device.type == "cpu" else None
    return float(rate) if isinstance(rate, int | float) else None


def _finish_at_exit(guard: Guard) -> None:
    """For scripts that made the guard themselves: write the run end when the interpreter ends, errors included."""
    seen: list[BaseException] = []
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        seen.append(error)
        previous(kind, error, traceback)

    sys.excepthook = excepthook

    def end() -> None:
        error = seen[0] if seen else None
        stopped = Outcome.STOPPED if isinstance(error, RunStopped) else Outcome.FAILED
        guard.finish(Outcome.FINISHED if error is None else stopped, error=error)

    atexit.register(end)


__all__ = ["Guard", "active"]
