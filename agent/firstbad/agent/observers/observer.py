"""What observers share: the current window, the model map, and the rule that an observer's fault stays its own."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from firstbad.agent.models import ModelMap
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
        self.patches = Patches()
        self.pid = os.getpid()
        self.checkpoint_parent: str | None = None
        self.previous_step_suspect = False
        """The previous step's bad update was applied (policy observe), so bad weights are no news."""
        self.detached = False

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
