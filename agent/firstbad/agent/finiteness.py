"""Whether what a run would go on from is finite: parameters, buffers and optimizer state of this rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from firstbad.agent.models.modelmap import ModelMap
from firstbad.agent.statistics import local_part, norms_of

logger = logging.getLogger("firstbad.agent")

_NORMED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Named = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Finiteness:
    """
    What one scan of this rank found. Each is None when it could not be read, "" when all is finite, else the name of a
    tensor that is not.
    """

    parameters: str | None
    buffers: str | None
    """Only NaN counts: masks hold -inf by design."""
    optimizer_state: str | None

    @property
    def ruined(self) -> bool:
        """Something is known not to be finite."""
        return any((self.parameters, self.buffers, self.optimizer_state))

    def sentence(self) -> str:
        """In words."""
        kinds = {"parameters": self.parameters, "buffers": self.buffers, "optimizer state": self.optimizer_state}
        finite = [kind for kind, found in kinds.items() if found == ""]
        bad = [f"{kind} ({found})" for kind, found in kinds.items() if found]
        unknown = [kind for kind, found in kinds.items() if found is None]
        parts = [("finite", finite), ("not finite", bad), ("not known", unknown)]
        return "on this rank " + "; ".join(f"{what}: {', '.join(names)}" for what, names in parts if names)


def scan(optimizers: list[Optimizer], models: ModelMap) -> Finiteness:
    """
    Look at every element of this rank's parameters, buffers and optimizer state once. Waits for the device: only for a
    run that ends. Not collective; never raises.
    """
    return Finiteness(
        parameters=_look("parameters", lambda: _parameters(optimizers, models), torch.isfinite),
        buffers=_look("buffers", lambda: iter(models.buffers()), lambda tensor: ~torch.isnan(tensor)),
        optimizer_state=_look("optimizer state", lambda: _state(optimizers, models), torch.isfinite),
    )


def _look(
    kind: str, tensors: Callable[[], Iterator[Named]], good: Callable[[torch.Tensor], torch.Tensor]
) -> str | None:
    try:
        return _first_bad(tensors(), good)
    except Exception as error:
        logger.warning("firstbad: whether %s are finite could not be read (%s)", kind, error, exc_info=error)
        return None


def _first_bad(tensors: Iterator[Named], good: Callable[[torch.Tensor], torch.Tensor]) -> str:
    held = [(name, local) for name, tensor in tensors if _holds_numbers(local := local_part(tensor))]
    normed = [pair for pair in held if pair[1].dtype in _NORMED]
    others = [pair for pair in held if pair[1].dtype not in _NORMED]
    # One pass of norms over everything; a norm may overflow, so what it suspects is looked at element by element.
    norms = norms_of([local for _, local in normed]).isfinite().tolist() if normed else []
    suspects = [pair for pair, finite in zip(normed, norms, strict=True) if not finite]
    for name, local in suspects + others:
        wide = local if local.dtype.is_complex or local.dtype in _NORMED else local.to(torch.float32)
        if not bool(good(wide).all()):
            return name
    return ""


def _holds_numbers(local: torch.Tensor) -> bool:
    if local.device.type == "meta" or not local.numel() or not (local.is_floating_point() or local.is_complex()):
        return False
    return local.untyped_storage().size() > 0  # FSDP frees the storage of what it has gathered


def _parameters(optimizers: list[Optimizer], models: ModelMap) -> Iterator[Named]:
    seen: set[int] = set()
    for parameter in [p for o in optimizers for group in o.param_groups for p in group["params"]] + models.parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield _name(parameter, models), parameter


def _state(optimizers: list[Optimizer], models: ModelMap) -> Iterator[Named]:
    for optimizer in optimizers:
        for key, state in list(optimizer.state.items()):
            owner = _name(key, models) if isinstance(key, torch.Tensor) else str(key)
            for path, tensor in _tensors(state):
                yield f"{path} of {owner}", tensor


def _tensors(value: Any, path: str = "") -> Iterator[Named]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, float):
        yield path, torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(item, f"{path}.{key}" if path else str(key))


def _name(parameter: torch.Tensor, models: ModelMap) -> str:
    place = models.place(parameter)
    return place.name if place is not None else "a parameter of no known model"
