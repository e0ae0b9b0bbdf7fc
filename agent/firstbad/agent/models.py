"""The models of a run: names of parameters, the order in which modules run, which parameters DDP reduces."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from firstbad.agent.lanes import MAX_ORDER

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter lives: its full name and its module's, as the user's own model names them."""

    name: str
    module: str
    reduced: bool
    """DDP reduces its gradient, so `.grad` after backward is no longer this rank's own."""


def clean(name: str) -> str:
    """A qualified name without the parts that wrappers (DDP, compile, checkpointing) put in."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def replicas(root: nn.Module) -> list[DistributedDataParallel]:
    """The DDP models in `root`, itself included: compile and people's own modules wrap them."""
    return [module for module in root.modules() if isinstance(module, DistributedDataParallel)]


class ModelMap:
    """Every outermost module that ran, and what is known of its parameters."""

    def __init__(self) -> None:
        self._roots = WeakIdKeyDictionary()  # by identity: people's modules may define __eq__
        self._places: dict[int, tuple[weakref.ref[torch.Tensor], Place]] = {}
        self._turn: dict[int, int] = {}
        self._turns = 0

    def add(self, root: nn.Module) -> None:
        """Learn the names below an outermost module."""
        self._roots[root] = None
        reduced = {id(p) for ddp in replicas(root) for p in ddp.parameters()}
        for prefix, module in root.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                owner = clean(prefix)
                full = f"{owner}.{name}" if owner else name
                known = self.place(parameter)
                if known is None:
                    self._turn.pop(id(parameter), None)  # a dead parameter's, whose id this one has now
                if known is None or (id(parameter) in reduced and not known.reduced):
                    # A model may have run before DDP wrapped it.
                    place = Place(full, owner, id(parameter) in reduced)
                    self._places[id(parameter)] = weakref.ref(parameter), place

    def ran(self, module: nn.Module) -> None:
        """Note that a module begins its forward; the first call of each fixes the causal order."""
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in self._turn:
                self._turn[id(parameter)] = self._turns
        self._turns += 1

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

    def forward_order(self, parameter: torch.Tensor) -> int:
        """Place in the forward, 0 first; MAX_ORDER when it was not seen running."""
        return min(self._turn.get(id(parameter), MAX_ORDER), MAX_ORDER)

    def backward_order(self, parameter: torch.Tensor) -> int:
        """Place in the backward, 0 first: the reverse of the forward; MAX_ORDER when unknown."""
        turn = self._turn.get(id(parameter))
        return MAX_ORDER if turn is None else min(max(self._turns - 1 - turn, 0), MAX_ORDER)

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
