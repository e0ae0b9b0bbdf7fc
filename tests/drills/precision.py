"""Precisions by name: dtype of the parameters, autocast, loss scaler, kind of linear layer."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from tests.drills.float8 import Float8Linear
from torch import nn


@dataclass(frozen=True, slots=True)
class Precision:
    """How a script computes."""

    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scaled: bool = False
    mixed: bool = False
    """FSDP2's own MixedPrecisionPolicy in bfloat16."""
    linear: type[nn.Linear] = nn.Linear

    def context(self) -> Any:
        """The context of a forward."""
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=self.autocast)

    def scaler(self) -> torch.amp.GradScaler | None:
        """The loss scaler; one back-off from any scale that overflows leads to one that does not."""
        return torch.amp.GradScaler("cpu", init_scale=256.0, backoff_factor=2.0**-30) if self.scaled else None


PRECISIONS = {
    "fp32": Precision(),
    "bf16": Precision(dtype=torch.bfloat16),
    "bf16_autocast": Precision(autocast=torch.bfloat16),
    "bf16_mixed": Precision(mixed=True),
    "fp16_scaler": Precision(autocast=torch.float16, scaled=True),
    "fp8": Precision(linear=Float8Linear),
}
