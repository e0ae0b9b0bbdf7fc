"""The outermost modules: found at their first forward, then watched at their inputs and outputs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from firstbad.agent.models.order import order
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.statistics import is_finite, measure
from firstbad.agent.window import Mark
from firstbad.schema import Stage, TensorKind


class ModuleObserver(Observer):
    """
    Finds each outermost module at its first call, and checks its floating-point inputs (stage input) and outputs (stage
    forward; loss for scalars). Forwards without gradients are evaluation and not looked at, nor are those that a
    backward runs again (activation checkpointing). One pass over inputs and outputs; nothing waits for an accelerator.
    """

    name = "modules"

    def __init__(
        self,
        scene: Scene,
        *,
        found: Callable[[nn.Module], None],
        entered: Callable[[nn.Module], None],
        ran: Callable[[], None],
    ) -> None:
        """
        Args:
            found: called once for each outermost module, before its first forward.
            entered: called before each of its forwards.
            ran: called after its first forward, when the causal order is known.
        """
        super().__init__(scene)
        self._on_found, self._on_entered, self._on_ran = found, entered, ran
        self._first = False
        self._handles = WeakIdKeyDictionary()  # by identity: people's modules may define __eq__

    def install(self) -> None:
        """
        Let every module call pass by. The wrapper stays for good: taking it away would make compilers, which have
        followed it, compile once more, and models may come at any step.
        """
        original = nn.Module.__call__
        arrive = self.watch(self._arrive)

        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # A compiler must find nothing, not even the flag: it would guard on it.
            if not torch.compiler.is_compiling() and (self._first or self.scene.inside is None):
                arrive(module)
            return original(module, *args, **kwargs)

        self.scene.patches.replace(nn.Module, "__call__", call)
        for name in ("script", "trace", "trace_module"):
            self.scene.patches.replace(torch.jit, name, self._wrap_jit(getattr(torch.jit, name)))

    def _wrap_jit(self, original: Any) -> Any:
        """TorchScript compiles a module's hooks with it, which ours cannot be: they step aside."""

        @functools.wraps(original)
        def without_hooks(*args: Any, **kwargs: Any) -> Any:
            roots = list(self._handles)
            for root in roots:
                self._unhook(root)
            inside, self.scene.inside = self.scene.inside, _NOWHERE
            try:
                return original(*args, **kwargs)
            finally:
                self.scene.inside = inside
                for root in roots:
                    self._hook(root)

        return without_hooks

    def _arrive(self, module: nn.Module) -> None:
        if torch._C._current_graph_task_id() != -1:
            return
        if self._first:
            self.scene.models.ran(module)
        elif self.scene.inside is None and torch.is_grad_enabled() and not self.scene.models.knows(module):
            self._found(module)

    def _found(self, root: nn.Module) -> None:
        if not any(parameter.requires_grad for parameter in root.parameters()):
            return
        self.scene.models.add(root)
        self._hook(root)
        self._first = True
        self._on_found(root)
        self.scene.models.ran(root)

    def _hook(self, root: nn.Module) -> None:
        self._handles[root] = [
            root.register_forward_pre_hook(_Hook(self.watch(self._before)), with_kwargs=True),
            root.register_forward_hook(_Hook(self.watch(self._after)), always_call=True),
        ]

    def _unhook(self, root: nn.Module) -> None:
        for handle in self._handles.pop(root, []):  # type: ignore[no-untyped-call]
            handle.remove()

    def _before(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not self._enter(root):
            return
        # What a later stage of a pipeline takes in is no data but what a peer has sent.
        if self.scene.pipeline is None or self.scene.pipeline[0] == 0:
            self._check(_tensors((args, kwargs), "input"), TensorKind.INPUT)

    def _enter(self, root: nn.Module) -> bool:
        if self.scene.inside is not None or not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return False
        self.scene.inside = root
        self._on_entered(root)
        return True

    def _after(self, root: nn.Module, _args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self.scene.inside is not root:
            return
        if self._first:
            self._first = False
            self._on_ran()
        self.scene.inside = None
        if output is not None:
            self._check(_tensors(output, "output"), TensorKind.OUTPUT)

    def _check(self, tensors: Iterator[tuple[str, torch.Tensor]], kind: TensorKind) -> None:
        window = self.scene.window
        micro = self.scene.coming_micro_step
        pipeline = self.scene.pipeline[0] if self.scene.pipeline else 0
        for place, (name, tensor) in enumerate(tensors):
            detached = tensor.detach()
            total = detached.sum(dtype=torch.promote_types(detached.dtype, torch.float32))
            stage = Stage.INPUT if kind is TensorKind.INPUT else Stage.LOSS if tensor.numel() == 1 else Stage.FORWARD
            where = order(pipeline=pipeline, position=place)
            mark = Mark(stage, micro, exact=True, trigger=False, value=total, order=where, module="")
            if total.device.type == "cpu":
                if torch.isfinite(total) or is_finite(detached):
                    continue
                mark.value = float("nan")
                mark.evidence = [measure(detached, kind=kind, name=name, module="", micro_step=micro)]
            window.marks.append(mark)


_NOWHERE = nn.Module()
"""Stands for the outermost module while nothing may be looked at."""


class _Hook:
    """
    A module hook that stays behind: where the script pickles or copies its model, a stdlib callable that does nothing
    goes along instead, so that the file needs no firstbad to be read.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        # First of all: a compiler or tracer that follows us in must find nothing.
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return
        self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _tensors(value: Any, name: str, depth: int = 4) -> Iterator[tuple[str, torch.Tensor]]:
    """Floating-point tensors in nested arguments or outputs, named by their path, in order."""
    if isinstance(value, torch.Tensor):
        if value.dtype.is_floating_point and value.numel() and value.layout is torch.strided:
            yield name, value
    elif depth:
        if isinstance(value, dict):
            for key, item in value.items():
                yield from _tensors(item, f"{name}.{key}", depth - 1)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                yield from _tensors(item, f"{name}.{index}", depth - 1)
