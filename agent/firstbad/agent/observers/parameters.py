"""Weights that were bad before the forward, or that the previous update made bad."""

from __future__ import annotations

import functools
import math

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.statistics import TensorStatistics, is_finite, local_part, measure, norms_of
from firstbad.agent.window import Mark
from firstbad.schema import Stage, TensorKind


class ParameterObserver(Observer):
    """
    One full scan of parameters and buffers before the first forward and after each load (stage param), and one when a
    step is bad anyway: weights that were fine then and are bad now are the previous update's work (stage update).
    Infinite buffers are not bad: attention masks hold -inf by design.
    """

    name = "parameters"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._loads = 0
        self._scanned = WeakIdKeyDictionary()
        """Outermost modules, with the number of loads before their last scan."""
        self._known_bad = False

    def install(self) -> None:
        """Notice loads: Module.load_state_dict."""
        original = nn.Module.load_state_dict

        @functools.wraps(original)
        def load_state_dict(module: nn.Module, *args: object, **kwargs: object) -> object:
            self._loads += 1
            return original(module, *args, **kwargs)  # type: ignore[arg-type]

        self.scene.patches.replace(nn.Module, "load_state_dict", load_state_dict)

    def before_forward(self, root: nn.Module) -> None:
        """Scan `root` when a scan is due. On an accelerator only remembers that it is due at the next bad step."""
        if not self.on or (root in self._scanned and self._scanned[root] == self._loads):
            return
        self._scanned[root] = self._loads
        try:
            self._known_bad = self._known_bad or self._first_bad(root) is not None
        except Exception as error:
            self.switch_off(error)

    def on_bad_step(self) -> None:
        """Scan all models because the window holds a trigger; waits for the device. Marks bad weights."""
        window = self.scene.window
        for root in self.scene.models.roots():
            found = self._first_bad(root, on_any_device=True)
            if found is None:
                continue
            known = self._known_bad or self.scene.previous_step_suspect
            self._known_bad = True
            name, tensor, is_parameter = found
            window.marks.append(
                Mark(
                    Stage.PARAM if known else Stage.UPDATE,
                    0,
                    exact=True,
                    trigger=True,
                    order=self.scene.models.forward_order(tensor),
                    module=name.rpartition(".")[0],
                    parameter=name if is_parameter else None,
                    evidence=self._evidence(name, tensor, is_parameter),
                )
            )
            return
        self._known_bad = False

    def _first_bad(self, root: nn.Module, *, on_any_device: bool = False) -> tuple[str, torch.Tensor, bool] | None:
        models = self.scene.models
        parameters = [
            p
            for p in root.parameters()
            if p.numel() and p.dtype.is_floating_point and (on_any_device or p.device.type == "cpu")
        ]
        if parameters:
            norms = norms_of([local_part(parameter) for parameter in parameters]).tolist()
            suspects = [p for p, norm in zip(parameters, norms, strict=True) if not math.isfinite(norm)]
            for parameter in sorted(suspects, key=models.position):
                if not is_finite(parameter):
                    place = models.place(parameter)
                    return (place.name if place else "unnamed parameter"), parameter, True
        if on_any_device and not self._known_bad:
            return None  # the forward of this very step may have written a bad value into a running statistic
        for name, buffer in root.named_buffers():
            usable = buffer.dtype.is_floating_point and (on_any_device or buffer.device.type == "cpu")
            if usable and bool(torch.isnan(buffer).any()):
                return name, buffer, False
        return None

    def _evidence(self, name: str, tensor: torch.Tensor, is_parameter: bool) -> list[TensorStatistics]:
        kind = TensorKind.PARAM if is_parameter else TensorKind.BUFFER
        return [measure(tensor, kind=kind, name=name, module=name.rpartition(".")[0], micro_step=0)]
