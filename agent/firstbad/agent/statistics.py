"""Statistics of one tensor on a bad step. Each function waits for the tensor's device: rare path only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from firstbad.schema import TensorKind


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """L2 about one tensor: counts of non-finite elements, and the largest finite magnitude."""

    kind: TensorKind
    name: str
    module: str | None
    micro_step: int | None
    shape: tuple[int, ...]
    dtype: str
    numel: int
    nan_count: int
    posinf_count: int
    neginf_count: int
    absmax_finite: float | None

    @property
    def is_bad(self) -> bool:
        """At least one element is not finite."""
        return self.nan_count + self.posinf_count + self.neginf_count > 0


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's dense elements: a DTensor's local shard, a sparse tensor's values."""
    to_local: Any = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor.detach() if to_local is None else to_local().detach()
    if local.layout in (torch.sparse_coo, torch.sparse_csr):
        local = local.coalesce().values() if local.layout is torch.sparse_coo else local.values()
    return local


def is_finite(tensor: torch.Tensor) -> bool:
    """Every element is finite, exactly: no norm that could overflow. Waits for the device."""
    return bool(torch.isfinite(local_part(tensor)).all())


def measure(
    tensor: torch.Tensor, *, kind: TensorKind, name: str, module: str | None, micro_step: int | None
) -> TensorStatistics:
    """Count a floating-point tensor's non-finite elements. Waits for the device."""
    local = local_part(tensor)
    finite = local[torch.isfinite(local)].abs()
    return TensorStatistics(
        kind=kind,
        name=name,
        module=module,
        micro_step=micro_step,
        shape=tuple(local.shape),
        dtype=str(local.dtype).removeprefix("torch."),
        numel=local.numel(),
        nan_count=int(torch.isnan(local).sum()),
        posinf_count=int(torch.isposinf(local).sum()),
        neginf_count=int(torch.isneginf(local).sum()),
        absmax_finite=float(finite.max().double()) if finite.numel() else None,
    )


def norms_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """
    L2 norm of each local tensor, shape [len(tensors)], float64, on the first tensor's device; does not wait for it.

    Accumulated in float32 or wider. A bad element always makes its norm bad; huge finite ones may overflow it, so a
    bad norm is a suspicion that `is_finite` settles.
    """
    out: list[torch.Tensor | None] = [None] * len(tensors)
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(index)
    for (_, dtype), members in kinds.items():
        wide = torch.promote_types(dtype, torch.float32)
        norms = torch._foreach_norm([tensors[i] for i in members], 2.0, dtype=wide)
        for index, norm in zip(members, norms, strict=True):
            out[index] = norm
    device = tensors[0].device
    return torch.stack([norm.to(device, torch.float64) for norm in out if norm is not None])
