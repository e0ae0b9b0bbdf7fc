"""Optimizers by name, as scripts make them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch import nn

_o = torch.optim
KINDS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": functools.partial(_o.SGD, lr=1e-2),
    "sgd_momentum": functools.partial(_o.SGD, lr=1e-2, momentum=0.9),
    "sgd_fused": functools.partial(_o.SGD, lr=1e-2, momentum=0.9, fused=True),
    "adam": functools.partial(_o.Adam, lr=1e-3, amsgrad=True),
    "adamw": functools.partial(_o.AdamW, lr=1e-3),
    "adamw_plain": functools.partial(_o.AdamW, lr=1e-3, foreach=False),
    "adamw_fused": functools.partial(_o.AdamW, lr=1e-3, fused=True),
    "sgd_plain": functools.partial(_o.SGD, lr=1e-2, momentum=0.9, foreach=False),
    "rmsprop": functools.partial(_o.RMSprop, lr=1e-3),
    "nadam": functools.partial(_o.NAdam, lr=1e-3),
    "adagrad": functools.partial(_o.Adagrad, lr=1e-2),
    "adafactor": functools.partial(_o.Adafactor, lr=1e-2),
}


def make(kind: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of one of KINDS."""
    return KINDS[kind](parameters)
