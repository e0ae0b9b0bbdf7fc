"""The guard of one rank: the door that scripts and the launcher use, and the life of a guard in its process."""

from __future__ import annotations

import atexit
import functools
import logging
import sys
from typing import Any, Self

import torch.distributed as dist

from firstbad.agent.batches import describe
from firstbad.agent.errorfile import write_error_file
from firstbad.agent.errors import AgentError, RunStopped
from firstbad.agent.fixedpoint import FixedPoint
from firstbad.agent.incarnation import Incarnation
from firstbad.agent.observers.observer import Scene
from firstbad.agent.observers.panel import Panel
from firstbad.agent.settings import Settings, SettingsError
from firstbad.agent.steering import uneven
from firstbad.agent.steering.attached import AttachedOptimizers
from firstbad.agent.steering.optimizers import OptimizerSteering
from firstbad.agent.steering.scalers import ScalerSteering
from firstbad.agent.window import Window
from firstbad.schema import Outcome, Policy

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
        self.attached = AttachedOptimizers()
        self.panel = Panel(self.scene, self.attached, self._is_own)
        self.panel.shielding = self.settings.policy is not Policy.OBSERVE
        self.fixedpoint = FixedPoint(self.panel, self.attached, meet=self._begin)
        self._met = False
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
        fixed = self.fixedpoint
        if fixed.closed or not self.scene.awake:
            return
        if isinstance(error, RunStopped):
            write_error_file(error)
        fixed.closed = True
        if fixed.life is not None:
            fixed.life.watchdog.stop()
        try:
            if fixed.life is None and (error is not None or self._met):
                fixed.enter(Incarnation.stillborn(self.settings))
            fixed.seal_row(None)
            fixed.begin_record()
            if fixed.life is not None:
                fixed.life.recorder.end(
                    self.scene.window,
                    outcome=outcome,
                    exit_code=exit_code,
                    error=error,
                    observers_off=self.panel.faults(),
                )
        except Exception as fault:
            logger.warning("firstbad: the run end could not be written (%s)", fault, exc_info=fault)

    def detach(self) -> None:
        """Put every wrapped function back; the guard then only waits for `finish`."""
        global _active
        self.panel.remove()
        self.scene.patches.restore()
        self.scene.detached = True
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

    def _install(self) -> None:
        patches = self.scene.patches
        optimizers = OptimizerSteering(self.fixedpoint, self.attached, patches)
        optimizers.install()
        scalers = ScalerSteering(
            self.fixedpoint, self.attached, optimizers, patches, floor=self.settings.min_loss_scale
        )
        scalers.install()
        self.attached.on_new = [self.panel.refresh, scalers.refresh]
        self.panel.install()
        if not dist.is_available():
            return
        uneven.install(patches, self.fixedpoint.shadow)
        if dist.is_initialized():
            self.fixedpoint.enter(self._begin())
            return
        original = dist.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            fixed = self.fixedpoint
            if self.scene.awake and not fixed.closed and (fixed.life is None or fixed.life.consensus.alone_by_need):
                self._leave_alone()
                fixed.enter(self._begin())
            return result

        patches.replace(dist, "init_process_group", init_process_group)
        patches.replace(dist.distributed_c10d, "init_process_group", init_process_group)

    def _begin(self) -> Incarnation:
        self._met = True
        return Incarnation.begin(self.settings, self._refusal)

    def _is_own(self, group: Any) -> bool:
        life = self.fixedpoint.life
        return life is not None and life.consensus.owns(group)

    def _leave_alone(self) -> None:
        """Steps taken before there was a process group were an incarnation of their own; end it."""
        fixed = self.fixedpoint
        if fixed.life is None:
            return
        fixed.seal_row(None)
        fixed.life.recorder.end(Window(), outcome=Outcome.FINISHED, exit_code=None, error=None, observers_off=())
        fixed.enter(None)


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


def _finish_at_exit(guard: Guard) -> None:
    """For scripts that made the guard themselves: write the run end when the interpreter ends, errors included."""
    seen: list[BaseException] = []
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        seen.append(error)
        if isinstance(error, RunStopped):
            write_error_file(error)  # at once: threads are joined first, and torchrun may kill before the end
        previous(kind, error, traceback)

    sys.excepthook = excepthook

    def end() -> None:
        error = seen[0] if seen else None
        stopped = Outcome.STOPPED if isinstance(error, RunStopped) else Outcome.FAILED
        guard.finish(Outcome.FINISHED if error is None else stopped, error=error)

    atexit.register(end)


__all__ = ["Guard", "active"]
