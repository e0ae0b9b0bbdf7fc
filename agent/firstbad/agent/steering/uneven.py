"""`DDP.join`: a rank whose data ended first goes on taking part in the decisions of those that still train."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from firstbad.agent.patches import Patches


class _ShadowHook(JoinHook):
    """Called once for each iteration of the ranks that have not joined yet."""

    def __init__(self, leader: Any, shadow: Callable[[], None]) -> None:
        self._leader = leader
        self._shadow = shadow

    def main_hook(self) -> None:
        # DDP's own hook ran just before and knows whether the others reduce in this iteration; when they only
        # accumulate they take no step.
        if getattr(self._leader, "require_forward_param_sync", True):
            self._shadow()


class _Shadow(Joinable):
    """The agent among the joinables, last, since the decision comes after the reductions."""

    def __init__(self, leader: Joinable, shadow: Callable[[], None]) -> None:
        super().__init__()
        self._leader = leader
        self._shadow = shadow

    def join_hook(self, **kwargs: Any) -> JoinHook:
        del kwargs
        return _ShadowHook(self._leader, self._shadow)

    @property
    def join_device(self) -> torch.device:
        return self._leader.join_device

    @property
    def join_process_group(self) -> Any:
        return self._leader.join_process_group


def install(patches: Patches, shadow: Callable[[], None]) -> None:
    """
    Add the agent to every join context.

    Args:
        shadow: takes one decision with nothing to report; collective over all ranks.
    """
    original = Join.__init__

    @functools.wraps(original)
    def init(join: Join, joinables: list[Joinable], *args: Any, **kwargs: Any) -> None:
        joinables = list(joinables)
        if joinables:
            joinables.append(_Shadow(joinables[0], shadow))
        original(join, joinables, *args, **kwargs)

    patches.replace(Join, "__init__", init)
