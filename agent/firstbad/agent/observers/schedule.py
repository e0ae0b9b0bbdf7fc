"""What moves beside the optimizer: learning-rate schedulers, loss scalers' losses, loads of checkpoints."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from firstbad.agent.observers.observer import Observer, Scene


class ScheduleObserver(Observer):
    """
    Notes that a learning-rate scheduler was stepped since the last decision, and the last path torch.load read. After a
    skip it holds each scheduler once, where the settings say so.
    """

    name = "schedule"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._free: weakref.WeakSet[Any] = weakref.WeakSet()
        """Schedulers that were held already since the last skip."""

    def hold(self) -> None:
        """A step was skipped: the next step of each scheduler is left out, until the next backward."""
        self.scene.hold_schedulers = True
        self._free.clear()

    def install(self) -> None:
        """Wrap `step` of every scheduler class, those defined later included, and torch.load."""
        for cls in _with_subclasses(LRScheduler):
            if "step" in vars(cls):
                self.scene.patches.replace(cls, "step", self._wrap_step(vars(cls)["step"]))
        load = torch.load
        loaded = self.watch(self._loaded)

        @functools.wraps(load)
        def load_and_note(f: Any, *args: Any, **kwargs: Any) -> Any:
            loaded(f)
            return load(f, *args, **kwargs)

        self.scene.patches.replace(torch, "load", load_and_note)
        # Pickle finds a function by its module and name, and wants the same object there.
        self.scene.patches.replace(torch.serialization, "load", load_and_note)

    def _wrap_step(self, original: Any) -> Any:
        stepped = self.watch(self._stepped)

        @functools.wraps(original)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if self.scene.hold_schedulers and scheduler not in self._free:
                self._free.add(scheduler)
                return None
            stepped()
            return original(scheduler, *args, **kwargs)

        return step

    def _stepped(self) -> None:
        self.scene.window.lr_stepped = True

    def _loaded(self, file: Any) -> None:
        path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
        if isinstance(path, str | os.PathLike):
            self.scene.checkpoint_parent = os.fspath(path)[:1024]


def _with_subclasses(cls: type[Any]) -> list[type[Any]]:
    children: list[type[Any]] = cls.__subclasses__()
    return [cls, *(found for child in children for found in _with_subclasses(child))]
