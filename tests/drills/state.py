"""Exact bits of what training changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tests.drills.script import Script


def local(tensor: Any) -> torch.Tensor:
    """This rank's own part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def bits(tensors: Iterable[Any]) -> str:
    """A hash over the exact bits of tensors and numbers."""
    digest = hashlib.sha256()
    for item in tensors:
        tensor = local(item.detach()) if isinstance(item, torch.Tensor) else torch.tensor(float(item))
        digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"-")
    return digest.hexdigest()[:16]


def parameters(script: Script) -> str:
    """Bits of every parameter and buffer of this rank."""
    return bits([*script.net.parameters(), *script.net.buffers()])


def optimizers(script: Script) -> str:
    """Bits of the optimizers' states, step counters included, and of the loss scaler's."""
    found: list[Any] = []
    for optimizer in script.optimizers:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            state = optimizer.state.get(parameter, {})
            found += [state[key] for key in sorted(state) if state[key] is not None]
    if script.scaler is not None:
        found += [script.scaler.get_scale(), script.scaler._get_growth_tracker()]
    return bits(found)
