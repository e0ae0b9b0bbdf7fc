"""Buffers that a forward writes, such as BatchNorm's running statistics: a skipped step puts them back."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.weak import WeakIdKeyDictionary

from firstbad.agent.models.modelmap import clean
from firstbad.agent.observers.observer import Observer, Scene

logger = logging.getLogger("firstbad.agent")

SMALL = 2**16
"""Bytes of a buffer up to which it is always copied."""
LARGEST = 64 * 2**20
"""Bytes of a buffer up to which it is copied in the first window, before it was seen to change."""


@dataclass(slots=True)
class _Kept:
    """A buffer as it was before the first forward of a window."""

    module: nn.Module
    name: str
    buffer: torch.Tensor
    version: int
    copy: torch.Tensor | None


class BufferShield(Observer):
    """
    Keeps the buffers of each outermost module as they were before its first forward of a step window.

    Copies every buffer in the first window, later only small ones, those of norms, and those that were seen to change
    (by torch's own version counter), so that masks and position tables cost nothing. Does not wait for the device.
    """

    name = "shield"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._kept: dict[int, list[_Kept]] = {}
        self._window: object | None = None
        self._live = WeakIdKeyDictionary()
        """Outermost modules; the names of their buffers that were seen to change."""
        self._told = False

    @torch.no_grad()
    def before_forward(self, root: nn.Module) -> None:
        """Keep the buffers of `root` unless this window has them already."""
        window = self.scene.window
        if window is not self._window:
            self._learn()
            self._kept, self._window = {}, window
        if id(root) in self._kept:
            return
        live: set[str] | None = self._live.get(root)  # type: ignore[no-untyped-call]
        kept: list[_Kept] = []
        for prefix, module in root.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is None:
                    continue
                full = f"{prefix}.{name}" if prefix else name
                size = buffer.numel() * buffer.element_size()
                always = size <= SMALL or isinstance(module, _NormBase)  # whose kernels write past the version counter
                wanted = always or (full in live if live is not None else size <= LARGEST)
                copy = buffer.detach().clone() if wanted else None
                kept.append(_Kept(module, name, buffer, buffer._version, copy))
        self._kept[id(root)] = kept
        if live is None:
            self._live[root] = set()

    def _learn(self) -> None:
        """Which buffers the last window has changed; those are copied from now on."""
        for root, live in self._live.items():  # type: ignore[no-untyped-call]
            names = {id(module): prefix for prefix, module in root.named_modules()}
            for kept in self._kept.get(id(root), ()):
                if _changed(kept):
                    prefix = names.get(id(kept.module), "")
                    live.add(f"{prefix}.{kept.name}" if prefix else kept.name)

    @torch.no_grad()
    def restore(self) -> None:
        """Put every buffer back, in place where it was written in place."""
        for entries in self._kept.values():
            for kept in entries:
                replaced = kept.module._buffers.get(kept.name) is not kept.buffer
                if replaced:
                    kept.module._buffers[kept.name] = kept.buffer
                if kept.copy is not None:
                    kept.buffer.detach().copy_(kept.copy)
                elif kept.buffer._version != kept.version and not self._told:
                    self._told = True
                    logger.warning(
                        "firstbad: buffer %s was written for the first time in a step that is skipped, so what it held "
                        "before is not known and it is left as it is; from now on it is put back",
                        clean(kept.name),
                    )


def _changed(kept: _Kept) -> bool:
    return kept.module._buffers.get(kept.name) is not kept.buffer or kept.buffer._version != kept.version
