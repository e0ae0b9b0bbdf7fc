"""
What this rank hands to the job's collectives: there a value is still its own, whoever receives it.

By `ProcessGroup.register_pre_hook`. Where torch has none, others tell of the collectives that Python asks for (`calls`)
and of DDP's buckets (`buckets`); where a bad value came from that was exchanged otherwise stays unknown.
"""

from __future__ import annotations

import functools
import math
import random
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from firstbad.agent.models.order import order
from firstbad.agent.models.wrappers import reduction_groups
from firstbad.agent.observers.gradients import GradientObserver, Pair
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.statistics import is_finite, local_part, measure
from firstbad.agent.window import Mark
from firstbad.schema import Stage, TensorKind

_REDUCTIONS = ("ALLREDUCE", "REDUCE_SCATTER")
_BY_HAND = (*_REDUCTIONS, "REDUCE")
_POINT_TO_POINT = ("SEND", "RECV")

GRADIENT_LIKE = 256
"""Elements from which on a tensor that is exchanged between backward and step is taken for flattened gradients."""


def hookable() -> bool:
    """Whether this torch lets us look at every collective of a process group."""
    return dist.is_available() and hasattr(dist.ProcessGroup, "register_pre_hook")


class CollectiveObserver(Observer):
    """
    Looks at the inputs of collectives in a forward (stage forward), in a backward (stage grad) and, where a script
    reduces its gradients by hand, between backward and step.

    Counts the exchanges of each forward and backward: in an SPMD program the n-th is the same on all ranks, so a rank
    that was handed a bad value can only pass it on in a later one.
    """

    name = "collectives"

    def __init__(self, scene: Scene, gradients: GradientObserver, is_own: Callable[[Any], bool]) -> None:
        """
        Args:
            is_own: whether a process group is the agent's.
        """
        super().__init__(scene)
        self._gradients = gradients
        self._is_own = is_own
        self._hooked: list[tuple[Any, int]] = []
        self._known = -1
        self._reducing: list[tuple[Any, weakref.ref[nn.Module] | None]] = []
        """Groups over which gradients are reduced; the DDP that does, not kept alive, or None for FSDP."""
        self._gradients_at: tuple[object, int, dict[int, list[torch.Tensor]]] = (None, -1, {})

    def found(self, root: nn.Module) -> None:
        """Learn the reductions of an outermost module."""
        self._reducing += [(group, None if ddp is None else weakref.ref(ddp)) for group, ddp in reduction_groups(root)]
        self.refresh()

    def refresh(self) -> None:
        """Hook process groups made since the last call. Cheap when there are none."""
        world: Any = getattr(distributed_c10d, "_world", None)
        if not dist.is_initialized() or world is None or not hookable():
            return
        if world.group_count == self._known:
            return
        self._known = world.group_count
        for group in list(world.pg_map):
            if self._is_own(group) or any(known is group for known, _ in self._hooked):
                continue
            # The same id would silently replace somebody else's hook. Not the script's random stream: never touch it.
            hook_id = random.SystemRandom().getrandbits(62)
            group.register_pre_hook(hook_id, functools.partial(self.watch(self._called), group))
            self._hooked.append((group, hook_id))

    def remove(self) -> None:
        """Take the hooks away."""
        for group, hook_id in self._hooked:
            group.unregister_pre_hook(hook_id)
        self._hooked.clear()

    def _called(self, group: Any, call: Any) -> None:
        self.look(group, call.name.name, call)

    @torch.no_grad()
    def look(self, group: Any, name: str, call: Any) -> None:
        """
        A collective is about to happen.

        Args:
            name: a `HookOpName`.
            call: its `input_tensors` and `root`.
        """
        scene, window = self.scene, self.scene.window
        if torch._C._current_graph_task_id() != -1:
            self._in_backward(call, group, name)
        elif self._is_sharding(group) or name.startswith(_POINT_TO_POINT) or name == "BROADCAST":
            return  # parameters and buffers, which the scan of weights covers; a pipeline's own exchange
        elif scene.inside is not None:
            exchange = self._count("forward", scene.coming_micro_step)
            window.handed = True
            for tensor in self._sent(call, group, name):
                self._activation(tensor, scene.coming_micro_step, name, exchange)
        elif window.kept_micro_steps and not scene.in_norm and not scene.pipelined and name.startswith(_BY_HAND):
            self._by_hand(self._sent(call, group, name))

    def _count(self, phase: str, micro: int) -> int:
        return self.scene.exchanges.take(self.scene.window, phase, micro)

    def _sent(self, call: Any, group: Any, name: str) -> list[torch.Tensor]:
        """The floating-point tensors that this rank gives away; receive buffers may hold anything."""
        if name in ("BROADCAST", "SCATTER") and call.root != group.rank():
            return []
        return [local_part(t) for t in call.input_tensors if t.dtype.is_floating_point and t.numel()]

    def _activation(self, tensor: torch.Tensor, micro: int, name: str, exchange: int) -> None:
        total = _norm(tensor)
        mark = Mark(
            Stage.FORWARD, micro, exact=True, trigger=False, value=total, order=self._order(exchange, forward=True)
        )
        if total.device.type == "cpu":
            if math.isfinite(float(total)) or is_finite(tensor):
                return
            mark.value = math.nan
            mark.evidence = [
                measure(tensor, kind=TensorKind.OUTPUT, name=f"{name.lower()} input", module=None, micro_step=micro)
            ]
        self.scene.window.marks.append(mark)

    def _order(self, exchange: int, *, forward: bool) -> int:
        stage, stages = self.scene.pipeline or (0, 1)
        return order(pipeline=stage if forward else stages - 1 - stage, exchange=exchange)

    def _in_backward(self, call: Any, group: Any, name: str) -> None:
        window = self.scene.window
        micro = window.current_micro_step
        exchange = self._count("backward", micro)
        reduces = name.startswith(_REDUCTIONS) and self._reduces(group)
        if reduces:
            window.synced_micro_steps.add(micro)
        elif not name.startswith("ALLGATHER"):
            window.handed = True
        if self.scene.looked_at_reduction:
            return  # whoever reduces has looked at each parameter's own gradient already
        accumulated = micro > window.kept_from and name.startswith("ALLREDUCE")
        for tensor in self._sent(call, group, name):
            total, exact = _norm(tensor), not reduces or window.every_micro_step_synced
            if total.device.type != "cpu":
                mark = Mark(Stage.GRAD, micro, exact=exact, trigger=reduces, value=total, accumulated=accumulated)
                mark.order = self._order(exchange, forward=False)
                window.marks.append(mark)
            elif not math.isfinite(float(total)) and not is_finite(tensor):
                self._bad(tensor, micro, exact, exchange, reduces=reduces, accumulated=accumulated)

    def _is_sharding(self, group: Any) -> bool:
        """Whether FSDP gathers parameters over `group`."""
        return any(known is group and ddp is None for known, ddp in self._reducing)

    def _reduces(self, group: Any) -> bool:
        """Whether gradients are reduced over `group` in this backward; DDP does not while it accumulates."""
        return any(
            known is group and (ddp is None or bool(getattr(ddp(), "require_backward_grad_sync", False)))
            for known, ddp in self._reducing
        )

    def _bad(
        self, tensor: torch.Tensor, micro: int, exact: bool, exchange: int, *, reduces: bool, accumulated: bool
    ) -> None:
        window = self.scene.window
        if any(mark.stage is Stage.GRAD and mark.micro_step == micro and mark.trigger for mark in window.marks):
            return  # the first bad bucket of a micro step has named the culprit; later ones only follow
        statistics = measure(tensor, kind=TensorKind.GRAD_BUCKET, name="bucket", module=None, micro_step=micro)
        held = self._gradients.held(self.scene.models.parameters()) if reduces else []
        # Gradients that are views of buckets may already be under reduction elsewhere: only this bucket's are our own.
        if self._gradients.local(_within(tensor, held) or held, micro, exact=exact, exchange=exchange):
            mark = window.marks[-1]
        else:
            mark = Mark(Stage.GRAD, micro, exact=exact, trigger=reduces, order=self._order(exchange, forward=False))
            window.marks.append(mark)
        mark.evidence.append(statistics)
        mark.accumulated = accumulated

    def _by_hand(self, tensors: list[torch.Tensor]) -> None:
        """A script that exchanges gradients itself, in their own tensors or flattened into others."""
        window = self.scene.window
        if window.synced_micro_steps:
            return
        held = self._by_storage()
        tensors = [t for t in tensors if t.numel() >= GRADIENT_LIKE or t.untyped_storage().data_ptr() in held]
        if not tensors:
            return
        window.exchanged_gradients = True
        micro, exact = window.current_micro_step, window.micro_steps == 1
        exchange = self._count("by hand", micro)
        for tensor in tensors:
            total = _norm(tensor)
            if total.device.type != "cpu" or math.isfinite(float(total)) or is_finite(tensor):
                continue
            if any(mark.stage is Stage.GRAD for mark in window.marks):
                return
            pairs = self._gradients.held(held.get(tensor.untyped_storage().data_ptr(), []))
            if not self._gradients.local(pairs, micro, exact=exact, exchange=exchange):
                statistics = measure(tensor, kind=TensorKind.GRAD_BUCKET, name="bucket", module=None, micro_step=micro)
                place = self._order(exchange, forward=False)
                mark = Mark(Stage.GRAD, micro, exact=exact, trigger=True, order=place, evidence=[statistics])
                window.marks.append(mark)

    def _by_storage(self) -> dict[int, list[torch.Tensor]]:
        """The parameters that hold a gradient, by the memory that it lives in; read once after each backward."""
        window = self.scene.window
        if self._gradients_at[0] is not window or self._gradients_at[1] != window.micro_steps:
            found: dict[int, list[torch.Tensor]] = {}
            for owner, grad in self._gradients.held():  # the gradients themselves must not be kept alive
                storage = _storage(grad)
                if storage is not None:
                    found.setdefault(storage, []).append(owner)
            self._gradients_at = window, window.micro_steps, found
        return self._gradients_at[2]


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
    return norm


def _within(tensor: torch.Tensor, pairs: list[Pair]) -> list[Pair]:
    """Those whose gradient lives in the memory of `tensor`."""
    storage = tensor.untyped_storage().data_ptr()
    return [(owner, grad) for owner, grad in pairs if _storage(grad) == storage]


def _storage(grad: torch.Tensor) -> int | None:
    to_local: Any = getattr(grad, "to_local", None)
    local: torch.Tensor = grad if to_local is None else to_local()
    return local.untyped_storage().data_ptr() if local.layout is torch.strided else None
