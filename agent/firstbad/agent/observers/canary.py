"""A small parameter near the input whose gradient is looked at in every micro step, also under no_sync."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.hooks import unserializable_hook

from firstbad.agent.observers.observer import Observer, Scene

LARGEST = 65_536
"""Elements of a canary at most: the check must stay negligible beside the backward."""


class CanaryObserver(Observer):
    """
    A bad gradient flows to the first layer, so one small early parameter tells in which micro step it passed. It
    misses a bad value made only in another weight's own gradient; the micro step is then unknown.
    """

    name = "canary"

    def __init__(self, scene: Scene, on_bad: Callable[[int], None]) -> None:
        super().__init__(scene)
        self._on_bad = on_bad
        self._roots_done = 0

    def settle(self) -> None:
        """Choose the parameters, once the first forward has fixed the order; one a model."""
        roots = list(self.scene.models.roots())
        for root in roots[self._roots_done :]:
            candidates = [p for p in root.parameters() if p.requires_grad and 0 < p.numel() <= LARGEST]
            if candidates:
                # Not the very first by order: an embedding's own gradient is last and large. Order, then size.
                chosen = min(candidates, key=lambda p: (self.scene.models.position(p), p.numel()))
                look = unserializable_hook(self.watch(self._look))  # type: ignore[no-untyped-call]
                chosen.register_hook(look)  # type: ignore[no-untyped-call]
        self._roots_done = len(roots)

    def _look(self, grad: torch.Tensor) -> None:
        # Reading a value on an accelerator would wait for it; there the last synchronised micro step is all we know.
        if grad.device.type == "cpu" and grad.layout is torch.strided and not torch.isfinite(grad).all():
            self._on_bad(self.scene.window.current_micro_step)
