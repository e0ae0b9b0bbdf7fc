"""The faults of the matrix, by name, and the operators that make bad values in a forward or a backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation

from firstbad.schema import Stage


class Fault(StrEnum):
    """What goes wrong. `stage` is where the first bad value appears."""

    LOADED_WEIGHT = "loaded_weight"
    """A checkpoint with a NaN in one weight is loaded."""
    LOADED_EMBEDDING = "loaded_embedding"
    """A checkpoint with NaN in the embedding is loaded."""
    NAN_FEATURE = "nan_feature"
    INF_FEATURE = "inf_feature"
    MASKED_ROW = "masked_row"
    """Attention over a row in which everything is masked: softmax of -inf alone."""
    CONSTANT_ROW = "constant_row"
    """Norm without epsilon over a row that is constant: 0/0."""
    OPERATOR_OUTPUT = "operator_output"
    """A custom operator (torch.library) overflows."""
    FLOAT8_SCALE = "float8_scale"
    """An FP8 scale taken from a maximum that has overflowed."""
    NO_LABELS = "no_labels"
    """The mean over no label at all: 0/0."""
    INF_WEIGHT = "inf_weight"
    """A sample weight in the loss is infinite."""
    BACKWARD_FUNCTION = "backward_function"
    """The backward of a custom autograd.Function overflows."""
    OPERATOR_BACKWARD = "operator_backward"
    """The backward of a custom operator gives NaN."""
    ROOT_OF_ZERO = "root_of_zero"
    """Finite in the forward, 0 * inf in the backward: no custom code in it."""
    OWN_GRADIENT = "own_gradient"
    """Bad in one weight's own gradient alone; what flows on is finite."""
    DIVISION = "division"
    """The script divides a gradient by zero after the backward."""
    SCALE = "scale"
    """The loss scale is too large for FP16: an overflow on every rank."""
    RATE = "rate"
    """An infinite learning rate for one update: finite gradients, bad weights."""

    @property
    def stage(self) -> Stage:
        """Where the first bad value appears."""
        return _STAGE[self]


_STAGE = {
    Fault.LOADED_WEIGHT: Stage.PARAM,
    Fault.LOADED_EMBEDDING: Stage.PARAM,
    Fault.NAN_FEATURE: Stage.INPUT,
    Fault.INF_FEATURE: Stage.INPUT,
    Fault.MASKED_ROW: Stage.FORWARD,
    Fault.CONSTANT_ROW: Stage.FORWARD,
    Fault.OPERATOR_OUTPUT: Stage.FORWARD,
    Fault.FLOAT8_SCALE: Stage.FORWARD,
    Fault.NO_LABELS: Stage.LOSS,
    Fault.INF_WEIGHT: Stage.LOSS,
    Fault.BACKWARD_FUNCTION: Stage.GRAD,
    Fault.OPERATOR_BACKWARD: Stage.GRAD,
    Fault.ROOT_OF_ZERO: Stage.GRAD,
    Fault.OWN_GRADIENT: Stage.GRAD,
    Fault.DIVISION: Stage.GRAD_REDUCED,
    Fault.SCALE: Stage.GRAD,
    Fault.RATE: Stage.UPDATE,
}

DATA = frozenset({Fault.NAN_FEATURE, Fault.INF_FEATURE, Fault.NO_LABELS, Fault.INF_WEIGHT})
OPERATORS = frozenset(fault for fault in Fault if fault.stage in (Stage.FORWARD, Stage.GRAD)) - {Fault.SCALE}


class _Overflowing(torch.autograd.Function):
    """GELU whose backward overflows in one element."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (out,) = torch.autograd.grad(F.gelu(leaf), leaf, grad)
        out = out.clone()
        out.view(-1)[0] = math.inf
        return out


class _OwnGradient(torch.autograd.Function):
    """A linear layer whose weight gradient has a NaN, and whose input gradient is right."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight.to(x.dtype), bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        own = (rows.T @ x.reshape(-1, x.shape[-1]).to(rows.dtype)).to(weight.dtype)
        own[0, 0] = math.nan
        return (grad @ weight.to(grad.dtype)).to(x.dtype), own, rows.sum(0).to(weight.dtype)


@torch.library.custom_op("firstbad_drills::gelu", mutates_args=())
def _gelu(x: torch.Tensor, bad_output: bool, bad_backward: bool) -> torch.Tensor:
    del bad_backward
    out = F.gelu(x).clone()
    if bad_output:
        out.view(-1)[0] = math.inf
    return out


def _keep(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    del output
    x, _, ctx.bad = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, grad: torch.Tensor) -> Any:
    (x,) = ctx.saved_tensors
    out = torch.ops.aten.gelu_backward(grad.contiguous(), x)
    if ctx.bad:
        out = out.clone()
        out.view(-1)[0] = math.nan
    return out, None, None


torch.library.register_autograd("firstbad_drills::gelu", _backward, setup_context=_keep)


def _masked_row(scores: torch.Tensor, dim: int) -> torch.Tensor:
    mask = torch.zeros_like(scores)
    mask[0, 0, 0] = -math.inf
    return torch.softmax(scores + mask, dim)


def _root_of_zero(x: torch.Tensor) -> torch.Tensor:
    out = F.gelu(x)
    return out + 0.0 * torch.sqrt(0.0 * out[..., :1])


def constant_row(norm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A forward for a layer norm that meets a row of zeros and has no epsilon."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(x)
        mask[0, 0] = 0.0
        return F.layer_norm(x * mask, norm.normalized_shape, norm.weight, norm.bias, 0.0)

    return forward


def own_gradient(linear: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A forward for a linear layer whose own weight gradient is bad."""
    return lambda x: _OwnGradient.apply(x, linear.weight, linear.bias)


ACTIVATIONS: dict[Fault, Callable[[torch.Tensor], torch.Tensor]] = {
    Fault.OPERATOR_OUTPUT: lambda x: _gelu(x, True, False),
    Fault.BACKWARD_FUNCTION: _Overflowing.apply,
    Fault.OPERATOR_BACKWARD: lambda x: _gelu(x, False, True),
    Fault.ROOT_OF_ZERO: _root_of_zero,
}
"""Operators that stand in for GELU."""

SOFTMAX: Callable[[torch.Tensor, int], torch.Tensor] = _masked_row
"""The operator that stands in for softmax under `Fault.MASKED_ROW`."""
