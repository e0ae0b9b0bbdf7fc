"""FP8 training by emulation: values pass through e4m3 with a scale per tensor, arithmetic stays in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def largest(x: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of a tensor, from which its scale is taken."""
    return x.detach().abs().amax()


class _Round(torch.autograd.Function):
    """Quantise and dequantise; the gradient passes straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
        del ctx
        scale = _LARGEST / amax
        return (x * scale).to(torch.float8_e4m3fn).to(x.dtype) / scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        del ctx
        return grad, None


class Float8Linear(nn.Linear):
    """A linear layer whose input and weight are rounded to e4m3."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.amax: Any = largest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = _Round.apply(self.weight, largest(self.weight))
        return nn.functional.linear(_Round.apply(x, self.amax(x)), weight, self.bias)
