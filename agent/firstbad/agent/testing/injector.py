"""Puts faults into what the script holds: its batches, modules, weights and process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from firstbad.agent.models.modelmap import clean
from firstbad.agent.statistics import local_part
from firstbad.agent.testing.faults import Fault, FaultKind, InjectionFailed
from firstbad.agent.testing.nested import map_first

logger = logging.getLogger("firstbad.agent.testing")

_T = TypeVar("_T")


class FaultInjector:
    """
    Puts the faults of this rank in, each once, at the step and micro step it was ordered for.

    Args:
        model: the script's model, wrapped (DDP, fully_shard) or not; a compiled one must be given before its first
            call, since torch.compile does not see hooks that come later.
        *faults: what goes wrong on which rank; give the same list on every rank.
        rank: this process; default: the process group's rank, else RANK, else 0.

    Raises:
        InjectionFailed: on the fault's own rank, the model has no module or parameter of that name.
    """

    def __init__(self, model: nn.Module, *faults: Fault, rank: int | None = None) -> None:
        self.rank = _rank() if rank is None else rank
        self.log: list[Fault] = []
        """What was put in on this rank so far: the truth that the ledger is compared with."""
        self._model = model
        self._waiting = [fault for fault in faults if fault.rank in (None, self.rank)]
        self._due: list[Fault] = []
        for fault in self._waiting:
            if fault.kind is FaultKind.GRADIENT:
                self._module(fault).register_forward_hook(self._gradient_hook(fault))
            elif fault.kind is FaultKind.PARAMETER:
                self._parameter(fault)

    @contextlib.contextmanager
    def at(self, step: int, micro_step: int = 0) -> Iterator[None]:
        """
        Put around forward and backward of one micro step.

        Raises:
            InjectionFailed: at the end, when a fault that was due is not in: `inputs` was not called, the module did
                not run or got no gradient.
        """
        self._due = [fault for fault in self._waiting if (fault.step, fault.micro_step) == (step, micro_step)]
        for fault in list(self._due):
            if fault.kind is FaultKind.KILL:
                self._done(fault)
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind is FaultKind.HANG:
                self._done(fault)
                _sleep(fault.seconds)
            elif fault.kind is FaultKind.PARAMETER:
                _poison(local_part(self._parameter(fault)), fault.value)
                self._done(fault)
        try:
            yield
            if self._due:
                raise InjectionFailed(
                    f"not put in: {'; '.join(map(str, self._due))}. An input must pass through `inputs` inside `at`; a "
                    "gradient needs its module to run and be part of the loss there (a compiled module must be given "
                    "to the injector before its first call)"
                )
        finally:
            self._due = []

    def inputs(self, batch: _T) -> _T:
        """
        The batch, or a copy with a bad element where a fault is due; tensors in dicts, lists and tuples are found.

        Raises:
            InjectionFailed: a fault is due and the batch holds no floating-point tensor (token ids cannot be bad:
                poison a parameter or a gradient of the embedding).
        """
        for fault in [fault for fault in self._due if fault.kind is FaultKind.INPUT]:
            batch, found = _with_bad_element(batch, fault.value)
            if not found:
                raise InjectionFailed(f"not put in: {fault}. The batch holds no floating-point tensor with elements")
            self._done(fault)
        return batch

    def _gradient_hook(self, fault: Fault) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            del module, inputs
            if fault not in self._due:
                return None
            return map_first(output, lambda tensor: _PoisonGradient.apply(tensor, self._bad_gradient, fault))[0]

        return hook

    def _bad_gradient(self, grad: torch.Tensor, fault: Fault) -> torch.Tensor:
        if fault not in self._waiting:  # the module runs more than once in a micro step
            return grad
        grad = grad.clone()
        _poison(local_part(grad), fault.value)
        self._done(fault)
        return grad

    def _done(self, fault: Fault) -> None:
        for faults in (self._waiting, self._due):
            if fault in faults:
                faults.remove(fault)
        self.log.append(fault)
        logger.warning("firstbad.testing: rank %d: put in %s", self.rank, fault)

    def _module(self, fault: Fault) -> nn.Module:
        known = {clean(name): module for name, module in self._model.named_modules() if name}
        module: nn.Module = _named(fault, known)
        return module

    def _parameter(self, fault: Fault) -> torch.Tensor:
        found = _named(fault, {clean(name): parameter for name, parameter in self._model.named_parameters()})
        if not local_part(found).numel():
            raise InjectionFailed(f"not put in: {fault}. This rank holds no element of that parameter")
        return found


class _PoisonGradient(torch.autograd.Function):
    """Identity whose backward hands the gradient to a function."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Any, fault: Fault) -> torch.Tensor:
        ctx.function, ctx.fault = function, fault
        return x.clone()  # a view would forbid the script to change it in place

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.function(grad, ctx.fault), None, None


def _poison(tensor: torch.Tensor, value: float) -> None:
    """Write into the first element; works for any strides, and waits for no device."""
    with torch.no_grad():
        tensor[(0,) * tensor.dim()].fill_(value)


def _with_bad_element(batch: Any, value: float) -> tuple[Any, bool]:
    def bad(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone()
        _poison(local_part(copy), value)
        return copy.requires_grad_(tensor.requires_grad)

    return map_first(batch, bad)


def _named(fault: Fault, known: dict[str, _T]) -> _T:
    if fault.name not in known:
        raise InjectionFailed(f"no such name in the model: {fault}. There are: {', '.join(list(known)[:40])}")
    return known[fault.name]


def _rank() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    text = os.environ.get("RANK", "")
    return int(text) if text.isdigit() else 0


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 3600.0))
