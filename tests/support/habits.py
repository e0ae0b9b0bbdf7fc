"""What people's scripts do that a guard must not disturb: each a loop as they write it, with a guard or without."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import weakref
from typing import Any

import torch
import torch.distributed as dist
from drills import Drill, bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from firstbad.agent.guard import Guard


class _BadWeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, on: bool) -> torch.Tensor:
        ctx.on = on
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (grad * math.nan if ctx.on else grad), None


class Two(nn.Module):
    """Two layers; while `bad` is set, the second one's weight gets a bad gradient from a good loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.outlet = nn.Linear(4, 4), nn.Linear(4, 4)
        self.bad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = _BadWeightGradient.apply(self.outlet.weight, self.bad)
        return nn.functional.linear(self.inlet(x).tanh(), weight, self.outlet.bias)


def _made(seed: int = 0) -> Two:
    torch.manual_seed(seed)
    return Two()


def _batch(step: int, rank: int = 0) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(step * 10 + rank))


def _report(model: nn.Module, **more: Any) -> dict[str, Any]:
    finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    return {"params": bits(model.parameters()), "finite": finite, **more}


def _guard(drill: Drill, journal: str) -> Guard | None:
    return Guard(journal=journal, **drill.settings) if drill.guard else None


class Sam(torch.optim.Optimizer):
    """Sharpness-aware: moves the weights, calls its closure there, moves them back and steps a base optimizer."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    def _all(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def climb(self) -> None:
        """Move to the sharp neighbour."""
        norm = torch.stack([p.grad.norm() for p in self._all()]).norm()  # type: ignore[union-attr]
        for p in self._all():
            self.state[p]["old"] = p.detach().clone()
            p.add_(p.grad * 0.05 / (norm + 1e-12))  # type: ignore[operator]
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        """Move back and step."""
        for p in self._all():
            p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """The usual call."""
        self.climb()
        with torch.enable_grad():
            closure()
        self.descend()


class SelfContainedSam(Sam):
    """The same without an optimizer of its own inside."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        del self.base

    @torch.no_grad()
    def descend(self) -> None:
        """Move back and step by hand."""
        for p in self._all():
            p.copy_(self.state[p]["old"] - 0.1 * p.grad)
        self.zero_grad()


def sharpness_aware(rank: int, drill: Drill, journal: str) -> Any:
    """SAM with a closure; `drill.optimizer` says which; `drill.faults` makes the first or second backward bad."""
    guard = _guard(drill, journal)
    model = _made()
    data: nn.Module = model
    if dist.is_initialized():
        data = DistributedDataParallel(model)
    optimizer = SelfContainedSam(model.parameters()) if drill.optimizer == "self" else Sam(model.parameters())
    for step in range(drill.steps):
        if step in drill.leave_out:
            continue
        hits = {fault.micro_step for fault in drill.faults if fault.step == step and fault.rank in (None, rank)}

        def loss(micro: int, step: int = step, hits: Any = hits) -> torch.Tensor:
            out: torch.Tensor = data(_batch(step, rank)).square().mean()
            return out * math.nan if micro in hits else out

        def again(loss: Any = loss) -> torch.Tensor:
            value: torch.Tensor = loss(1)
            value.backward()
            return value

        loss(0).backward()
        optimizer.step(again)
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model)


def accumulates_into_a_closure(rank: int, drill: Drill, journal: str) -> Any:
    """As Lightning does: the micro steps but the last before the step, the last inside its closure."""
    guard = _guard(drill, journal)
    model = _made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    returned = []
    for step in range(drill.steps):
        if step in drill.leave_out:
            continue
        hits = {fault.micro_step for fault in drill.faults if fault.step == step}
        optimizer.zero_grad()
        for micro in range(2):

            def closure(micro: int = micro, step: int = step, hits: Any = hits) -> torch.Tensor:
                value: torch.Tensor = model(_batch(step * 2 + micro, rank)).square().mean()
                (value * math.nan if micro in hits else value).backward()
                return value.detach()

            if micro == 0:
                closure()
            else:
                returned.append(float(optimizer.step(closure)))
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model, returned=returned)


def skips_by_itself(rank: int, drill: Drill, journal: str) -> Any:
    """`if not isfinite(norm): continue`, with `drill.optimizer` clearing by the optimizer or by the model."""
    guard = _guard(drill, journal)
    model = _made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped = []
    for step in range(drill.steps):
        (model if drill.optimizer == "by_model" else optimizer).zero_grad()
        model.bad = any(fault.step == step for fault in drill.faults)
        model(_batch(step, rank)).sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            skipped.append(step)
            continue
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model, skipped=skipped)


def combines_gradients(rank: int, drill: Drill, journal: str) -> Any:
    """Gradient surgery: each task's gradient is taken, put aside and cleared; one step with their sum."""
    guard = _guard(drill, journal)
    model = _made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(drill.steps):
        if step in drill.leave_out:
            continue
        kept = []
        for task in range(2):
            optimizer.zero_grad()
            model.bad = any((fault.step, fault.micro_step) == (step, task) for fault in drill.faults)
            model(_batch(step * 2 + task, rank)).square().mean().backward()
            kept.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
        optimizer.zero_grad()
        for p, one, two in zip(model.parameters(), *kept, strict=True):
            p.grad = one + two
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model)


def has_no_data(rank: int, drill: Drill, journal: str) -> Any:
    """Data parallel by hand: in step 1 and 2 the last rank has no tokens, calls no backward and gives zeros."""
    guard = _guard(drill, journal)
    model = _made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last = dist.get_world_size() - 1
    for step in range(drill.steps):
        optimizer.zero_grad(set_to_none=False)
        model.bad = any(fault.step == step and fault.rank == rank for fault in drill.faults)
        if not (step in (1, 2) and rank == last):
            model(_batch(step, rank)).square().mean().backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model)


def second_model_comes_late(rank: int, drill: Drill, journal: str) -> Any:
    """A second DDP model begins to train after several steps of the first; its gradient is bad on one rank."""
    guard = _guard(drill, journal)
    first = DistributedDataParallel(_made())
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        first(_batch(step, rank)).sum().backward()
        optimizer.step()
    second = _made()
    wrapped = DistributedDataParallel(second)
    optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
    for step in range(4, 6):
        optimizer.zero_grad()
        second.bad = any(fault.step == step and fault.rank == rank for fault in drill.faults)
        wrapped(_batch(step, rank)).sum().backward()
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(second)


class _Said(logging.Handler):
    """What the guard says in a rank."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def leaves_out_before_the_backward(rank: int, drill: Drill, journal: str) -> Any:
    """A local `continue` before the backward, on rank 1 at step 2; the script tells its step."""
    guard, said = _guard(drill, journal), _Said()
    logging.getLogger("firstbad.agent").addHandler(said)
    model = DistributedDataParallel(_made())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5 if rank == 0 else 6):
        if (step, rank) == (2, 1):
            continue
        optimizer.zero_grad()
        if guard is not None:
            guard.batch(step=step)
        model(_batch(step, rank)).square().mean().backward()
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return said.lines


def compresses(rank: int, drill: Drill, journal: str) -> Any:
    """DDP with PowerSGD, whose error feedback would keep a bad gradient for ever."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    guard = _guard(drill, journal)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)))
    state = power.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, power.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(drill.steps):
        optimizer.zero_grad()
        x = torch.randn(4, 32, generator=torch.Generator().manual_seed(step * 10 + rank))
        loss = model(x).square().mean()
        (loss * math.nan if any(f.hits(step, 0, rank) for f in drill.faults) else loss).backward()
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model, compressed=len(state.error_dict))


def trains_one_after_another(rank: int, drill: Drill, journal: str) -> Any:
    """Three models in turn, as a sweep does; whether model, weight and optimizer of each are gone when it is over."""
    guard = _guard(drill, journal)
    gone = []
    for step in range(3):
        model = _made()
        wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped(_batch(step, rank)).sum().backward()
        optimizer.step()
        left = [weakref.ref(model), weakref.ref(model.inlet.weight), weakref.ref(optimizer)]
        del model, wrapped, optimizer
        gc.collect()
        gone.append(all(reference() is None for reference in left))
    if guard is not None:
        guard.__exit__(None, None, None)
    return {"gone": gone}


def joins(rank: int, drill: Drill, journal: str) -> Any:
    """Uneven inputs under DDP.join: rank r has 3 + 2r batches of `drill.micro_steps` each; faults are bad losses."""
    guard = _guard(drill, journal)
    model = DistributedDataParallel(_made())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with model.join():
        for step in range(3 + 2 * rank):
            optimizer.zero_grad()
            for micro in range(drill.micro_steps):
                with model.no_sync() if micro < drill.micro_steps - 1 else contextlib.nullcontext():
                    loss = model(_batch(step * 7 + micro, rank)).square().mean()
                    (loss * math.nan if any(f.hits(step, micro, rank) for f in drill.faults) else loss).backward()
            optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model)


def shards_all_but_the_head(rank: int, drill: Drill, journal: str) -> Any:
    """FSDP2 as its documentation has it: layers are sharded one by one, what is left over, the head too, by the root.

    `drill.optimizer` names the module whose gradient is bad.
    """
    from torch.distributed.fsdp import fully_shard

    from firstbad.agent.testing import FaultInjector, poison_gradient

    guard = _guard(drill, journal)
    torch.manual_seed(0)

    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet, self.middle, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.middle(self.inlet(x).tanh()).tanh())

    model = Headed()
    fully_shard(model.middle)
    fully_shard(model)
    inject = FaultInjector(model, poison_gradient(drill.optimizer, step=2, rank=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        with inject.at(step):
            model(_batch(step, rank)).square().mean().backward()
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return None


def exports(rank: int, drill: Drill, journal: str) -> Any:
    """Scripts, traces and exports a model between steps, and trains on."""
    guard = _guard(drill, journal)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    for step in range(3):
        optimizer.zero_grad()
        model(_batch(step, rank)).sum().backward()
        optimizer.step()
        exported = torch.jit.script(model), torch.jit.trace(model, _batch(0))
        outputs += [torch.equal(copy(_batch(0)), model(_batch(0))) for copy in exported]
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model, outputs=outputs)


def compiles(rank: int, drill: Drill, journal: str) -> Any:
    """How many graphs a compiled model and a compiled step take over six steps."""
    guard = _guard(drill, journal)
    graphs: list[int] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(1)
        return graph.forward

    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = torch.compile(inner, backend=backend)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        model(_batch(step, rank)).square().mean().backward()
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(inner, graphs=len(graphs))


def checkpoints_activations(rank: int, drill: Drill, journal: str) -> Any:
    """Blocks that the backward runs again; a bad gradient in the last step names its layer as in any model."""
    from torch.utils.checkpoint import checkpoint

    guard = _guard(drill, journal)
    torch.manual_seed(0)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Two() for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=drill.bucket_view)
            return x

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model.blocks[1].bad = any(fault.step == step for fault in drill.faults)  # type: ignore[assignment]
        model(_batch(step, rank).requires_grad_()).square().mean().backward()
        optimizer.step()
    roots = len(guard.scene.models.roots()) if guard is not None else 0
    if guard is not None:
        guard.__exit__(None, None, None)
    return _report(model, roots=roots)
