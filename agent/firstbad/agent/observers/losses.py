"""What backward is called on: the micro step counter, and stage loss."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.statistics import measure
from firstbad.agent.window import Mark
from firstbad.schema import Stage, TensorKind


class LossObserver(Observer):
    """
    Sees each root backward call: `torch.autograd.backward`, which Tensor.backward and pipelines go through.

    A backward inside a backward (reentrant checkpointing) is no micro step. A value on the CPU is read at once; one on
    an accelerator is kept and read with the verdict.
    """

    name = "loss"

    def __init__(self, scene: Scene, before: Callable[[bool], None]) -> None:
        """
        Args:
            before: called before every root backward; its argument is false for the first of a window.
        """
        super().__init__(scene)
        self._before = before
        self._scaled: tuple[weakref.ref[torch.Tensor], torch.Tensor] | None = None

    def install(self) -> None:
        """Wrap `torch.autograd.backward`."""
        original = torch.autograd.backward
        see = self.watch(self._see)

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if torch._C._current_graph_task_id() == -1 and self.scene.awake:
                self.scene.hold_schedulers = False
                self.scene.inside = None  # a forward that failed in somebody's hook may have left it
                self._before(self.scene.window.micro_steps > 0)
                # Counting is no observer's business: a rank that stopped counting would leave its peers waiting.
                see(tensors, self.scene.window.begin_backward(self.scene.chunk))
            return original(tensors, *args, **kwargs)

        self.scene.patches.replace(torch.autograd, "backward", backward)

    def scaled(self, outputs: object, result: object) -> None:
        """A loss scaler has multiplied `outputs`; when backward is called on `result`, the loss is `outputs`."""
        if isinstance(outputs, torch.Tensor) and isinstance(result, torch.Tensor):
            self._scaled = (weakref.ref(result), outputs.detach())

    def _see(self, tensors: Any, micro: int) -> None:
        window = self.scene.window
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors):
            if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1 or not tensor.dtype.is_floating_point:
                continue
            value = self._unscaled(tensor).detach()
            on_host = value.device.type == "cpu"
            loss = value.double().item() if on_host else value
            window.losses.append((micro, loss))
            if not on_host:
                window.marks.append(Mark(Stage.LOSS, micro, exact=True, trigger=True, value=value, order=0))
            elif not torch.isfinite(value).all():
                evidence = [measure(value, kind=TensorKind.LOSS, name="loss", module=None, micro_step=micro)]
                window.marks.append(
                    Mark(Stage.LOSS, micro, exact=True, trigger=True, value=loss, order=0, evidence=evidence)
                )

    def _unscaled(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._scaled is not None and self._scaled[0]() is tensor:
            loss = self._scaled[1]
            self._scaled = None
            return loss
        return tensor
