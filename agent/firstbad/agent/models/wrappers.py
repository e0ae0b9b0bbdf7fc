"""Modules that reduce gradients: DDP, FSDP1 and FSDP2, as far as their surfaces can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def replicas(root: nn.Module) -> list[DistributedDataParallel]:
    """The DDP models in `root`, itself included: compile and people's own modules wrap them."""
    return [module for module in root.modules() if isinstance(module, DistributedDataParallel)]


def sharded_groups(root: nn.Module) -> Iterator[Any]:
    """The parameter groups of FSDP2 (`fully_shard`) in `root`, each once: they hold parameters and process groups."""
    seen: set[int] = set()
    for module in root.modules():
        state_of = getattr(module, "_get_fsdp_state", None)
        if state_of is None:
            continue
        state = state_of()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]  # before torch 2.13 there was one
        for group in groups:
            if group is not None and id(group) not in seen:
                seen.add(id(group))
                yield group


def flattened(root: nn.Module) -> list[nn.Module]:
    """The FSDP1 (FullyShardedDataParallel) modules in `root`."""
    return [module for module in root.modules() if hasattr(module, "_fsdp_wrapped_module")]


def reduced_parameters(root: nn.Module) -> list[torch.Tensor]:
    """Parameters whose `.grad` after backward is a sum over ranks, no longer this rank's own."""
    found: list[torch.Tensor] = []
    for ddp in replicas(root):
        ignored = set(getattr(ddp, "parameters_to_ignore", ()))  # experts, which other ranks do not hold
        found += [parameter for name, parameter in ddp.module.named_parameters() if name not in ignored]
    for group in sharded_groups(root):
        found += [item.sharded_param for item in group.fsdp_params]
    for module in flattened(root):
        found += list(module.parameters())
    return found


def reduction_groups(root: nn.Module) -> Iterator[tuple[Any, nn.Module | None]]:
    """
    Process groups over which gradients of `root` are reduced in its backward, each with the DDP that owns it; None for
    FSDP, which only reduces when it means to.
    """
    for ddp in replicas(root):
        yield ddp.process_group, ddp
    for group in sharded_groups(root):
        mesh = getattr(group, "mesh_info", None)
        for name in ("shard_process_group", "replicate_process_group"):
            process_group = getattr(mesh, name, None)
            if process_group is not None:
                yield process_group, None
    for module in flattened(root):
        for name in ("process_group", "_inter_node_pg"):
            process_group = getattr(module, name, None)
            if process_group is not None:
                yield process_group, None
