"""
What this rank hands to DDP's reduction, where torch has no `ProcessGroup.register_pre_hook`: a DDP communication hook
that looks at each bucket first.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from firstbad.agent.models.order import order
from firstbad.agent.models.wrappers import replicas
from firstbad.agent.observers.gradients import GradientObserver, Pair
from firstbad.agent.observers.observer import Observer, Scene
from firstbad.agent.statistics import is_finite, local_part, measure
from firstbad.agent.window import Mark
from firstbad.schema import Stage, TensorKind

_c10d: Any = dist

Hook = Callable[[Any, Any], Any]
"""A DDP communication hook: takes its state and a bucket, gives a future of the reduced tensor."""


@dataclass(slots=True)
class _Seat:
    """The one place that a DDP has for a hook, taken by ours. `hook` is the script's; None is the native reduction."""

    hook: Hook | None = None
    state: object = None


class BucketObserver(Observer):
    """
    Looks at each bucket of DDP before its reduction. Wraps the script's own hooks; a DDP that has none at its first
    forward gets one that reduces as torch itself does, bit for bit, until the script registers another.

    A hook that was registered before there was a guard stays as it is, and that DDP is not observed.
    """

    name = "buckets"

    def __init__(self, scene: Scene, gradients: GradientObserver, needed: bool) -> None:
        """
        Args:
            needed: torch has no better place to look at.
        """
        super().__init__(scene)
        self._gradients, self._needed = gradients, needed
        self._seats: weakref.WeakKeyDictionary[Any, _Seat] = weakref.WeakKeyDictionary()
        self._views: dict[int, int] = {}
        """By id of the parameter: where its gradient lay before this backward, in models whose gradients are views."""

        self._present: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """What counts the ranks that still have data, of each DDP that runs inside `DDP.join`."""

    def install(self) -> None:
        """Wrap both ways to register a hook, and the count of ranks in `DDP.join`."""
        if self._needed:
            self.scene.patches.replace(Join, "notify_join_context", staticmethod(self._wrap_join()))
            for name, wrap in (("register_comm_hook", self._wrap), ("_register_builtin_comm_hook", self._wrap_builtin)):
                original = getattr(DistributedDataParallel, name)
                self.scene.patches.replace(DistributedDataParallel, name, wrap(original))

    def found(self, root: nn.Module) -> None:
        """Take the free seats of every DDP in an outermost module."""
        for ddp in replicas(root) if self._needed else []:
            # Torch's list of Python hooks is empty beside a hook in C++, and a second one would end the run.
            known: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
            if ddp not in self._seats and not known.get("comm_hook") and ddp.process_group.size() > 1:
                self._take(ddp, _Seat())

    def before_backward(self) -> None:
        """Remember which gradients lie in buckets already: torch rounds those in another way."""
        self._views.clear()
        for ddp in self._seats:
            for parameter in ddp.parameters() if ddp.gradient_as_bucket_view else ():
                if parameter.grad is not None and parameter.grad.layout is torch.strided:
                    self._views[id(parameter)] = parameter.grad.untyped_storage().data_ptr()

    def _take(self, ddp: Any, seat: _Seat) -> None:
        """Register past the DDP, whose own list of hooks stays the script's."""
        _c10d._register_comm_hook(ddp.reducer, None, self._looking(ddp, seat))
        self._seats[ddp] = seat

    def _looking(self, ddp: Any, seat: _Seat) -> Hook:
        owner, look = weakref.ref(ddp), self.watch(self._look)

        def hook(state: object, bucket: Any) -> Any:
            del state  # the seat holds the state of whichever hook sits in it
            self.scene.looked_at_reduction = bool(look(owner(), bucket))
            try:
                return self._reduce(owner(), bucket) if seat.hook is None else seat.hook(seat.state, bucket)
            finally:
                self.scene.looked_at_reduction = False

        return hook

    def _wrap(self, original: Any) -> Any:
        @functools.wraps(original)
        def register_comm_hook(ddp: Any, state: object, hook: Any) -> None:
            seat = self._seats.get(ddp)
            if seat is not None and seat.hook is None:
                ddp._check_comm_hook(hook)
                ddp.logger._set_comm_hook_name(hook.__qualname__)
                ddp._comm_hooks.append((hook, state))
                seat.hook, seat.state = hook, state
            elif self.on and seat is None and callable(hook):
                seat = _Seat(hook, state)
                # Torch reads signature and name of a hook.
                original(ddp, state, functools.wraps(hook)(self._looking(ddp, seat)))
                ddp._comm_hooks[-1] = hook, state
                self._seats[ddp] = seat
            else:
                original(ddp, state, hook)

        return register_comm_hook

    def _wrap_builtin(self, original: Any) -> Any:
        """A hook in C++ cannot be wrapped, but each has a twin in Python that rounds alike."""

        @functools.wraps(original)
        def register_builtin_comm_hook(ddp: Any, comm_hook_type: Any) -> None:
            seat, twin = self._seats.get(ddp), _twin(str(comm_hook_type))
            if twin is None or (seat is not None and seat.hook is not None) or (seat is None and not self.on):
                original(ddp, comm_hook_type)
                return
            if seat is None:
                self._take(ddp, seat := _Seat())
            ddp.logger._set_comm_hook_name(str(comm_hook_type))
            seat.hook, seat.state = twin, ddp.process_group

        return register_builtin_comm_hook

    def _wrap_join(self) -> Any:
        original = Join.notify_join_context

        @functools.wraps(original)
        def notify_join_context(joinable: Any) -> Any:
            work = original(joinable)
            if joinable in self._seats:
                self._present[joinable] = work
            return work

        return notify_join_context

    def _divisor(self, ddp: Any) -> int:
        """The number of ranks; in `DDP.join` the script may ask for that of those which still have data."""
        work = self._present.get(ddp)
        if work is None or ddp._divide_by_initial_world_size:
            return int(ddp.process_group.size())
        work.wait()
        return int(work.get_future().value()[0].item())

    def _reduce(self, ddp: Any, bucket: Any) -> Any:
        """The native reduction: scaled before it is summed."""
        buffer, world = bucket.buffer(), self._divisor(ddp)
        if buffer.layout is not torch.strided:
            buffer.div_(world)
        elif self._views and any(map(self._was_view(buffer), bucket.parameters())):
            was_view = self._was_view(buffer)
            for parameter, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if was_view(parameter):
                    grad.div_(world)
                else:
                    grad.mul_(1.0 / world)
        else:
            buffer.mul_(1.0 / world)
        future = dist.all_reduce(buffer, group=ddp.process_group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    def _was_view(self, buffer: torch.Tensor) -> Callable[[torch.Tensor], bool]:
        storage = buffer.untyped_storage().data_ptr()
        return lambda parameter: self._views.get(id(parameter)) == storage

    @torch.no_grad()
    def _look(self, ddp: Any, bucket: Any) -> bool:
        """Returns: the gradients were looked at."""
        if not isinstance(bucket, _c10d.GradBucket):
            return False  # a compiler that takes DDP's place calls its hooks with something else
        scene, window = self.scene, self.scene.window
        micro, exact = window.current_micro_step, window.every_micro_step_synced
        exchange = scene.exchanges.coming(window, "backward", micro)
        window.synced_micro_steps.add(micro)
        values = local_part(bucket.buffer())
        total = torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
        accumulated = micro > window.kept_from
        mark = Mark(Stage.GRAD, micro, exact=exact, trigger=True, value=total, accumulated=accumulated)
        stage, stages = scene.pipeline or (0, 1)
        mark.order = order(pipeline=stages - 1 - stage, exchange=exchange)
        if total.device.type != "cpu":
            window.marks.append(mark)
            return True
        if math.isfinite(float(total)) or is_finite(values):
            return True
        if any(known.stage is Stage.GRAD and known.micro_step == micro and known.trigger for known in window.marks):
            return True  # the first bad bucket of a micro step has named the culprit; later ones only follow
        if self._gradients.local(self._own(ddp, bucket), micro, exact=exact, exchange=exchange):
            mark = window.marks[-1]
            mark.accumulated = accumulated
        else:
            mark.value = math.nan
            window.marks.append(mark)
        mark.evidence.append(
            measure(bucket.buffer(), kind=TensorKind.GRAD_BUCKET, name="bucket", module=None, micro_step=micro)
        )
        return True

    def _own(self, ddp: Any, bucket: Any) -> list[Pair]:
        """
        Gradients that no reduction has touched: those in the bucket, and where they are no views of buckets, which may
        be under reduction, all that the backward has made so far. Before torch has put the buckets in order of the
        backward, the first bad one need not be the origin's.
        """
        members, buffer = bucket.parameters(), bucket.buffer()
        grads = bucket.gradients() if buffer.layout is torch.strided else [buffer]
        pairs: list[Pair] = list(zip(members, grads, strict=True))
        if not ddp.gradient_as_bucket_view:
            here = {id(parameter) for parameter in members}
            pairs += self._gradients.held([parameter for parameter in ddp.parameters() if id(parameter) not in here])
        return pairs


def _twin(builtin: str) -> Hook | None:
    """The hook in Python that does what a `BuiltinCommHookType` does."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    twins = {"ALLREDUCE": default_hooks.allreduce_hook, "FP16_COMPRESS": default_hooks.fp16_compress_hook}
    return twins.get(builtin.rpartition(".")[2])
