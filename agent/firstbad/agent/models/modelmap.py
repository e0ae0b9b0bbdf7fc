"""What is known of the models of a run: names of parameters, the order in which modules run, who is reduced."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from firstbad.agent.models.order import LAST, order
from firstbad.agent.models.wrappers import reduced_parameters

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


UNSEEN = 1 << 30
"""Position of a parameter whose module was not seen running."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter lives: its full name and its module's, as the user's own model names them."""

    name: str
    module: str
    owner: weakref.ref[nn.Module]
    reduced: bool
    """A wrapper reduces its gradient, so `.grad` after backward is no longer this rank's own."""


def clean(name: str) -> str:
    """A qualified name without the parts that wrappers (DDP, compile, checkpointing) put in."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class ModelMap:
    """Every outermost module that ran, and what is known of its parameters."""

    def __init__(self) -> None:
        self._roots = WeakIdKeyDictionary()  # by identity: people's modules may define __eq__
        self._places: dict[int, tuple[weakref.ref[torch.Tensor], Place]] = {}
        self._turn = WeakIdKeyDictionary()
        self._turns = 0
        self._pipeline = WeakTensorKeyDictionary()

    def add(self, root: nn.Module) -> None:
        """Learn the names below an outermost module."""
        self._roots[root] = None
        reduced = {id(parameter) for parameter in reduced_parameters(root)}
        for prefix, module in root.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                known = self.place(parameter)
                if known is None or (id(parameter) in reduced and not known.reduced):
                    # A model may have run before a wrapper took it.
                    owner = clean(prefix)
                    full = f"{owner}.{name}" if owner else name
                    place = Place(full, owner, weakref.ref(module), id(parameter) in reduced)
                    self._places[id(parameter)] = weakref.ref(parameter), place

    def ran(self, module: nn.Module) -> None:
        """Note that a module begins its forward; the first call of each fixes the causal order."""
        if module not in self._turn:
            self._turn[module] = self._turns
        self._turns += 1

    def in_pipeline(self, module: nn.Module, stage: int, stages: int) -> None:
        """`module` is stage `stage`, from 0, of a pipeline of `stages`."""
        for parameter in module.parameters():
            self._pipeline[parameter] = stage, stages

    def pipeline(self, parameter: torch.Tensor) -> tuple[int, int]:
        """Pipeline stage of a parameter and the number of stages; (0, 1) without a pipeline."""
        found: tuple[int, int] = self._pipeline.get(parameter, (0, 1))  # type: ignore[no-untyped-call]
        return found

    def knows(self, root: nn.Module) -> bool:
        """Whether `root` was added."""
        return root in self._roots

    def roots(self) -> list[nn.Module]:
        """The outermost modules that still live, in the order in which they were found."""
        return list(self._roots)

    def place(self, parameter: torch.Tensor) -> Place | None:
        """Name and module of a parameter; None when it belongs to no known model."""
        alive, place = self._places.get(id(parameter), (None, None))
        return place if alive is not None and alive() is parameter else None

    def position(self, parameter: torch.Tensor) -> int:
        """Place in the forward, 0 first; UNSEEN when it was not seen running."""
        place = self.place(parameter)
        owner = place.owner() if place else None
        return int(self._turn[owner]) if owner is not None and owner in self._turn else UNSEEN

    def forward_order(self, parameter: torch.Tensor) -> int:
        """Place in causal order of a value that is bad before or in the forward."""
        return order(pipeline=self.pipeline(parameter)[0], position=self.position(parameter))

    def backward_order(self, parameter: torch.Tensor, exchange: int = LAST) -> int:
        """
        Place in causal order of a gradient: the reverse of the forward.

        Args:
            exchange: number of the exchange in its micro step that carried it; LAST when it was seen elsewhere.
        """
        (stage, stages), position = self.pipeline(parameter), self.position(parameter)
        back = UNSEEN if position == UNSEEN else self._turns - 1 - position
        return order(pipeline=stages - 1 - stage, exchange=exchange, position=back)

    def in_backward(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sorted as a backward reaches them."""
        return sorted(parameters, key=lambda parameter: (at := self.position(parameter)) == UNSEEN or -at)

    def parameters(self) -> list[torch.Tensor]:
        """All parameters of the known models, in order of registration."""
        return [parameter for root in self.roots() for parameter in root.parameters()]

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """All buffers of the known models with their names."""
        return [(clean(name), buffer) for root in self.roots() for name, buffer in root.named_buffers()]

    def structure(self) -> list[str]:
        """One line a module, name and class, for the config hash."""
        return [
            f"{clean(name)}:{type(module).__name__}" for root in self.roots() for name, module in root.named_modules()
        ]
