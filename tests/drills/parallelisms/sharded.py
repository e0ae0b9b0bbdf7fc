"""Parameters in shards: FSDP2, HSDP, tensor parallel, and both together."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from tests.drills.model import Transformer
from tests.drills.script import Script
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

_PLAN = {
    "attention.wq": ColwiseParallel,
    "attention.wk": ColwiseParallel,
    "attention.wv": ColwiseParallel,
    "attention.wo": RowwiseParallel,
    "mlp.w1": ColwiseParallel,
    "mlp.w2": RowwiseParallel,
}


class Fsdp2(Script):
    """fully_shard, a group of parameters a block."""

    reduces = True
    offloads = False
    """Shards and optimizer live in the host's memory, whatever the device."""

    def mesh(self) -> DeviceMesh:
        """The mesh to shard over."""
        return init_device_mesh("cpu", (dist.get_world_size(),))

    def shard(self, net: Any, mesh: DeviceMesh) -> Any:
        """Shard every block and the rest."""
        kept: dict[str, Any] = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if self.offloads else {}
        if self.precision.mixed:
            kept["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in net.blocks.values():
            fully_shard(block, mesh=mesh, **kept)
        return fully_shard(net, mesh=mesh, **kept)

    def wrap(self, net: nn.Module) -> Any:
        return self.shard(net, self.mesh())


class Offloaded(Fsdp2):
    """fully_shard with CPU offload."""

    offloads = True


class Fsdp2Accumulation(Fsdp2):
    """Three micro steps, each of them reduced."""

    micro_steps = 3


class Fsdp2Quiet(Fsdp2Accumulation):
    """Three micro steps, only the last reduced."""

    def quiet(self, micro_step: int) -> Any:
        self.model.set_requires_gradient_sync(micro_step == self.micro_steps - 1)
        return super().quiet(micro_step)


class Hsdp(Fsdp2):
    """Shards over pairs of ranks, replicas across."""

    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))


def _short(script: Script) -> Any:
    """Two blocks: the first use of every operator on a DTensor costs milliseconds for each shape."""
    return Transformer(depth=2, linear=script.precision.linear).to(script.precision.dtype)


def _cut(net: Any, mesh: DeviceMesh) -> None:
    for block in net.blocks.values():
        parallelize_module(block, mesh, {name: style() for name, style in _PLAN.items()})


class TensorParallel(Script):
    """Attention and MLP cut over all ranks, which read the same data."""

    def make_net(self) -> Any:
        return _short(self)

    def wrap(self, net: nn.Module) -> Any:
        _cut(net, init_device_mesh("cpu", (dist.get_world_size(),)))
        return net

    def reader(self) -> int:
        return 0

    def readers(self) -> frozenset[int]:
        return frozenset(range(dist.get_world_size()))


class Fsdp2TensorParallel(Fsdp2):
    """Tensor parallel in pairs, FSDP2 across the pairs."""

    def make_net(self) -> Any:
        return _short(self)

    def wrap(self, net: nn.Module) -> Any:
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        _cut(net, mesh["tp"])
        return self.shard(net, mesh["dp"])

    def reader(self) -> int:
        return self.rank // 2

    def readers(self) -> frozenset[int]:
        first = self.rank // 2 * 2
        return frozenset({first, first + 1})


SCRIPTS: dict[str, type[Script]] = {
    "fsdp2": Fsdp2,
    "fsdp2_offload": Offloaded,
    "fsdp2_accumulation": Fsdp2Accumulation,
    "fsdp2_quiet": Fsdp2Quiet,
    "hsdp": Hsdp,
    "tp": TensorParallel,
    "fsdp2_tp": Fsdp2TensorParallel,
}
