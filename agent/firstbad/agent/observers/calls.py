"""
Collectives that Python asks for, where torch has no `ProcessGroup.register_pre_hook`: its methods are wrapped instead,
and the functional collectives that DTensor uses. What C++ exchanges by itself stays unseen.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from firstbad.agent.observers.observer import Observer, Scene

_c10d: Any = distributed_c10d

_METHODS = {
    "allreduce": ("ALLREDUCE", 0),
    "allreduce_coalesced": ("ALLREDUCE_COALESCED", 0),
    "reduce": ("REDUCE", 0),
    "reduce_scatter": ("REDUCE_SCATTER", 1),
    "_reduce_scatter_base": ("REDUCE_SCATTER_BASE", 1),
    "reduce_scatter_tensor_coalesced": ("REDUCE_SCATTER_TENSOR_COALESCED", 1),
    "reduce_scatter_single": ("REDUCE_SCATTER_BASE", 1),
    "allgather": ("ALLGATHER", 1),
    "_allgather_base": ("ALLGATHER_BASE", 1),
    "all_gather_single": ("ALLGATHER_BASE", 1),
    "allgather_into_tensor_coalesced": ("ALLGATHER_INTO_TENSOR_COALESCED", 1),
    "alltoall": ("ALLTOALL", 1),
    "alltoall_base": ("ALLTOALL_BASE", 1),
    "all_to_all_single": ("ALLTOALL_BASE", 1),
    "broadcast": ("BROADCAST", 0),
    "gather": ("GATHER", 1),
    "scatter": ("SCATTER", 1),
    "send": ("SEND", 0),
    "recv": ("RECV", 0),
}
"""Methods of process groups, old and new: their name for a hook, and the place of what is given away."""

_FUNCTIONS = {
    "all_reduce": ("ALLREDUCE", 2),
    "reduce_scatter_tensor": ("REDUCE_SCATTER_BASE", 3),
    "all_gather_tensor": ("ALLGATHER_BASE", 2),
    "all_to_all_single": ("ALLTOALL_BASE", 3),
}
"""Functional collectives: their name for a hook, and the place of the group; what is given away comes first."""

_FUNCTIONAL = "torch.distributed._functional_collectives"


@dataclass(frozen=True, slots=True)
class Call:
    """A collective as far as an observer asks: as torch's own `PreHookArgs`."""

    input_tensors: list[torch.Tensor]
    root: int


class CallObserver(Observer):
    """Hands each collective that it sees to the observer of collectives, before it happens."""

    name = "calls"

    def __init__(
        self, scene: Scene, look: Callable[[Any, str, Any], None], is_own: Callable[[Any], bool], needed: bool
    ) -> None:
        """
        Args:
            look: gets process group, name and call of each collective but the agent's own.
            is_own: whether a process group is the agent's.
            needed: torch has no better place to look at.
        """
        super().__init__(scene)
        self._seen, self._is_own, self._needed = self.watch(look), is_own, needed

    def install(self) -> None:
        """Wrap what this torch has of methods and functions."""
        if not self._needed:
            return
        for name, (label, place) in _METHODS.items():
            if (original := getattr(dist.ProcessGroup, name, None)) is not None:
                self.scene.patches.replace(dist.ProcessGroup, name, self._wrap_method(original, label, place))
        module = sys.modules.get(_FUNCTIONAL)
        for name, (label, place) in _FUNCTIONS.items():
            if (original := getattr(module, name, None)) is not None:
                self.scene.patches.replace(module, name, self._wrap_function(original, label, place))

    def _wrap_method(self, original: Any, label: str, place: int) -> Any:
        def method(group: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) > place and not self._is_own(group):
                self._seen(group, label, Call(list(_tensors(args[place])), _root(args)))
            return original(group, *args, **kwargs)

        return functools.wraps(original)(method)

    def _wrap_function(self, original: Any, label: str, place: int) -> Any:
        resolve = self.watch(_group)

        @functools.wraps(original)
        def function(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # A compiler that follows us in must find nothing.
            if not torch.compiler.is_compiling():
                given = kwargs["group"] if "group" in kwargs else args[place - 1] if len(args) >= place else None
                group = resolve(given) if isinstance(tensor, torch.Tensor) else None
                if group is not None:
                    self._seen(group, label, Call(list(_tensors(tensor)), 0))
            return original(tensor, *args, **kwargs)

        return function


def _group(given: Any) -> Any:
    """The process group behind what functional collectives take for one: itself, a mesh with a dimension, a name."""
    functional = sys.modules[_FUNCTIONAL]
    return _c10d._resolve_process_group(functional._resolve_group_name(given))


def _root(args: tuple[Any, ...]) -> int:
    """Rank in the group that a broadcast or scatter comes from: in its options, or a plain number."""
    for argument in args[1:]:
        root = getattr(argument, "rootRank", argument)
        if isinstance(root, int):
            return root
    return 0


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
