"""The first floating-point tensor of a nested batch or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def map_first(item: Any, function: Any) -> tuple[Any, bool]:
    """A copy of a nested batch with `function` of its first floating-point tensor, and whether there was one."""
    if isinstance(item, torch.Tensor):
        usable = item.is_floating_point() and item.numel() > 0
        return (function(item), True) if usable else (item, False)
    if isinstance(item, Mapping):
        for key, value in item.items():
            new, found = map_first(value, function)
            if found:
                copy: Any = dict(item) if type(item) is dict else type(item)(item)  # type: ignore[call-arg]
                copy[key] = new
                return copy, True
    elif isinstance(item, list | tuple):
        for index, value in enumerate(item):
            new, found = map_first(value, function)
            if found:
                parts = [*item[:index], new, *item[index + 1 :]]
                return (type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)), True
    return item, False
