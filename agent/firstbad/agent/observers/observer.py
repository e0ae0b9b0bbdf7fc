"""What observers share: the current window, the model map, and the rule that an observer's fault stays its own."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from firstbad.agent.models.modelmap import ModelMap
from firstbad.agent.models.order import Exchanges
from firstbad.agent.patches import Patches
from firstbad.agent.window import Window

logger = logging.getLogger("firstbad.agent")

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Scene:
    """What all observers of one guard look at: the step window now open, the models found, the patches in place."""

    def __init__(self) -> None:
        self.window = Window()
        self.models = ModelMap()
        self.exchanges = Exchanges()
        self.patches = Patches()
        self.pid = os.getpid()
        self.checkpoint_parent: str | None = None
        self.previous_step_suspect = False
        """The previous step's bad update was applied (policy observe), so bad weights are no news."""
        self.inside: object | None = None
        """The outermost module whose forward is running."""
        self.in_norm = False
        """The script's own gradient norm is being computed."""
        self.looked_at_reduction = False
        """A reduction is running whose gradients were looked at one by one already."""
        self.pipeline: tuple[int, int] | None = None
        """Stage and number of stages of the pipeline chunk that is running."""
        self.chunk: int | None = None
        """Micro step of the pipeline chunk that is running."""
        self.pipelined = False
        """The model is trained in a pipeline."""
        self.hold_schedulers = False
        """A step was just skipped, and learning-rate schedulers are held for it."""
        self.detached = False

    @property
    def coming_micro_step(self) -> int:
        """The micro step that a forward running now belongs to."""
        return self.window.coming_micro_step if self.chunk is None else self.chunk

    @property
    def awake(self) -> bool:
        """False after detach, and in a forked child (a DataLoader worker): the guard belongs to the parent."""
        return self.pid == os.getpid() and not self.detached


class Observer:
    """
    Base of observers. `watch` wraps a function of the observer so that a fault of its own is logged once, counted,
    and switches this observer off; the training loop never sees it.
    """

    name = "observer"

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.fault: str | None = None

    @property
    def on(self) -> bool:
        """Whether the observer works in this process."""
        return self.fault is None and self.scene.awake

    def install(self) -> None:
        """Put the observer's hooks in place; called once. Default: nothing."""

    def watch(self, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        """`function`, timed into the window, silent once the observer is off."""

        def watched(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            if not self.on:
                return None
            window, begun = self.scene.window, time.perf_counter()
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.switch_off(error)
                return None
            finally:
                window.guard_seconds += time.perf_counter() - begun

        _keep_from_compiler(watched)
        return watched

    def switch_off(self, error: BaseException) -> None:
        """Stop observing for good, and say so once."""
        if self.fault is None:
            self.fault = f"{type(error).__name__}: {error}"
            logger.warning(
                "firstbad: observer %r is off after a fault of its own (%s); training and the per-step decision go on "
                "without it",
                self.name,
                self.fault,
                exc_info=error,
            )


def _keep_from_compiler(function: Callable[..., object]) -> None:
    """
    Let a compiler run `function`, and what it calls, as it is: torch calls our hooks from within compiled frames, and
    the compiler would try to compile them. Does nothing where torch has no such switch.
    """
    switch = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    try:
        skip = switch._FrameExecStrategy(switch._FrameAction.SKIP, switch._FrameAction.SKIP)  # type: ignore[union-attr]
        switch.set_code_exec_strategy(function.__code__, skip)  # type: ignore[union-attr]
    except AttributeError:
        return
