"""DistributedDataParallel in the forms that people use."""

from __future__ import annotations

import contextlib
from typing import Any

import torch.distributed as dist
from tests.drills.parallelisms.single import SparseGradients, TwoOptimizers
from tests.drills.script import Script
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


class _Replicated(Script):
    """Gradients are averaged over all ranks."""

    reduces = True


class Ddp(_Replicated):
    """The native reduction."""

    def wrap(self, net: nn.Module) -> Any:
        return DistributedDataParallel(net)


class BucketView(_Replicated):
    """Gradients are views of the buckets."""

    def wrap(self, net: nn.Module) -> Any:
        return DistributedDataParallel(net, gradient_as_bucket_view=True)


class StaticGraph(_Replicated):
    """The graph is promised to stay the same."""

    def wrap(self, net: nn.Module) -> Any:
        return DistributedDataParallel(net, static_graph=True)


class Synced(Ddp):
    """Three micro steps, each of them reduced."""

    micro_steps = 3


class NoSync(Ddp):
    """Three micro steps, only the last reduced."""

    micro_steps = 3

    def quiet(self, micro_step: int) -> Any:
        last = micro_step == self.micro_steps - 1
        return contextlib.nullcontext() if last else self.model.no_sync()


class Fp16Hook(_Replicated):
    """Gradients are compressed to float16 by a Python hook."""

    def wrap(self, net: nn.Module) -> Any:
        model = DistributedDataParallel(net)
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return model


class BuiltinHook(_Replicated):
    """The reduction is a C++ hook."""

    def wrap(self, net: nn.Module) -> Any:
        model = DistributedDataParallel(net)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        return model


class PowerSgd(_Replicated):
    """
    Gradients are compressed to low rank. What the compression left out is kept for the next step, so a bad value stays
    in the hook's own memory: a later step is never good again.
    """

    recovers = False

    def wrap(self, net: nn.Module) -> Any:
        model = DistributedDataParallel(net)
        state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=2, min_compression_rate=1.2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model


class DdpTwoOptimizers(TwoOptimizers, Ddp):
    """One backward for two optimizers."""


class DdpSparse(SparseGradients, Ddp):
    """Sparse gradients of the embedding."""


SCRIPTS: dict[str, type[Script]] = {
    "ddp": Ddp,
    "ddp_bucket_view": BucketView,
    "ddp_static_graph": StaticGraph,
    "ddp_synced": Synced,
    "ddp_no_sync": NoSync,
    "ddp_fp16_hook": Fp16Hook,
    "ddp_builtin_hook": BuiltinHook,
    "ddp_powersgd": PowerSgd,
    "ddp_sparse": DdpSparse,
    "ddp_two_optimizers": DdpTwoOptimizers,
}
