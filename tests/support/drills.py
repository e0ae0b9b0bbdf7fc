"""
A small training run with a fault in it, for drills: what a user's script does, and nothing of the guard's inside.

The injector decides where the bad value is made; its own plan is the truth that the ledger is compared with.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from firstbad.agent.guard import Guard

WIDTH = 8


@dataclass(frozen=True)
class Fault:
    """Where a bad value is made: kind, step, micro step, rank (None: every rank)."""

    kind: str
    step: int
    micro_step: int = 0
    rank: int | None = 0
    value: float = math.nan

    def hits(self, step: int, micro_step: int, rank: int) -> bool:
        return self.step == step and self.micro_step == micro_step and self.rank in (None, rank)


@dataclass(frozen=True)
class Drill:
    """One training run."""

    faults: tuple[Fault, ...] = ()
    steps: int = 4
    micro_steps: int = 1
    no_sync: bool = False
    ddp: bool = True
    bucket_view: bool = False
    optimizer: str = "adamw"
    dtype: torch.dtype = torch.float32
    clip: float | None = None
    zero_grad: bool = True
    guard: bool = True
    leave_out: tuple[int, ...] = ()
    """Steps that a run without a guard leaves out by hand: the reference for skipping."""
    settings: dict[str, Any] = field(default_factory=dict)
    tell: bool = True
    scheduler: bool = False
    wrap: str = ""
    """How the model meets DDP: it runs before ("warm"), is wrapped once more ("outer"), or is compiled ("compiled")."""
    nan_inputs_on: int | None = None
    """A rank whose inputs always hold a NaN that the model masks by design."""


class _PoisonGrad(torch.autograd.Function):
    """Identity whose backward puts a bad value into the gradient that flows through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, value: float) -> torch.Tensor:
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.clone()
        grad.view(-1)[0] = ctx.value
        return grad, None


class Block(nn.Module):
    """Norm, linear, smooth activation (a ReLU would mask a bad gradient where it is off), with a place for poison."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.poison: float | None = None
        self.poison_output: float | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.tanh(self.linear(self.norm(x)))
        if self.poison is not None:
            x = _PoisonGrad.apply(x, self.poison)
        if self.poison_output is not None:
            x = x + self.poison_output
        return x


class Net(nn.Module):
    """Three blocks between an input and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.outlet = nn.Linear(WIDTH, 1)
        self.mask_nan = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inlet(torch.nan_to_num(x) if self.mask_nan else x)
        for block in self.blocks:
            x = block(x)
        return self.outlet(x)


def _optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
    made: dict[str, Any] = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-2),
        "adamw_fused": lambda: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
        "adam": lambda: torch.optim.Adam(parameters, lr=1e-2, amsgrad=True),
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-2),
        "sgd_momentum": lambda: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=1e-3),
        "nadam": lambda: torch.optim.NAdam(parameters, lr=1e-3),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=1e-2),
        "adafactor": lambda: torch.optim.Adafactor(parameters, lr=1e-2),
    }
    return made[name]()  # type: ignore[no-any-return]


def data(step: int, micro_step: int, rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of one micro step: the same in every run."""
    generator = torch.Generator().manual_seed(1 + step * 1000 + micro_step * 100 + rank)
    x = torch.randn(4, WIDTH, generator=generator)
    y = torch.randn(4, 1, generator=generator)
    return x.to(dtype), y.to(dtype)


def bits(tensors: Any) -> str:
    """A hash over the exact bits of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def state_bits(optimizer: torch.optim.Optimizer) -> str:
    """A hash over an optimizer's state tensors, step counters included."""
    tensors = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key in sorted(state):
                value = state[key]
                if value is not None:
                    tensors.append(
                        (value if isinstance(value, torch.Tensor) else torch.tensor(float(value))).reshape(-1)
                    )
    return bits(tensors)


def train(rank: int, drill: Drill, journal: str | None = None) -> dict[str, Any]:
    """Run a drill on one rank; returns bits of parameters and optimizer state, losses, and the error that ended it."""
    torch.manual_seed(7)
    guard = Guard(journal=journal, **drill.settings) if drill.guard else None
    net = Net().to(drill.dtype)
    world = dist.get_world_size() if dist.is_initialized() else 1
    model: nn.Module = net
    if drill.ddp and world > 1:
        if drill.wrap == "warm":
            net(data(0, 0, rank, drill.dtype)[0])
        model = ddp = DistributedDataParallel(net, gradient_as_bucket_view=drill.bucket_view)
        if drill.wrap == "outer":
            model = nn.Sequential(ddp)
        elif drill.wrap == "compiled":
            model = torch.compile(ddp, backend="eager")  # type: ignore[assignment]
    optimizer = _optimizer(drill.optimizer, model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9) if drill.scheduler else None
    out: dict[str, Any] = {"losses": [], "params": [], "state": [], "error": None}
    try:
        for step in range(drill.steps):
            if step in drill.leave_out:
                out["params"].append(bits(net.parameters()))
                continue
            out["losses"].append(_step(rank, drill, step, guard, net, model, optimizer))
            if scheduler is not None:
                scheduler.step()
            out["params"].append(bits(net.parameters()))
            out["state"].append(state_bits(optimizer))
            if not drill.zero_grad:
                out["grads_clear"] = all(p.grad is None or not p.grad.any() for p in net.parameters())
    except RuntimeError as error:
        out["error"] = (type(error).__name__, str(error))
        if guard is not None:
            guard.__exit__(type(error), error, None)
            guard = None
    out["final_params"], out["final_state"] = bits(net.parameters()), state_bits(optimizer)
    out["finite"] = all(bool(torch.isfinite(p).all()) for p in net.parameters())
    if guard is not None:
        guard.__exit__(None, None, None)
    return out


def _step(rank: int, drill: Drill, step: int, guard: Guard | None, net: Net, model: Any, optimizer: Any) -> float:
    faults = [fault for fault in drill.faults if fault.step == step]
    total = 0.0
    if drill.zero_grad:
        optimizer.zero_grad()
    for fault in faults:
        if fault.kind == "param" and fault.rank in (None, rank):
            with torch.no_grad():
                net.blocks[1].linear.weight[0, 0] = fault.value
    for micro in range(drill.micro_steps):
        x, y = data(step, micro, rank, drill.dtype)
        if guard is not None and drill.tell:
            guard.batch(
                shard_id=f"shard{rank}", sample_ids=[f"s{step}.{micro}.{rank}"], valid_tokens=4, step=100 + step
            )
        hits = [fault for fault in faults if fault.hits(step, micro, rank)]
        kinds = {fault.kind: fault.value for fault in hits}
        if "input" in kinds:
            x[0, 0] = kinds["input"]
        net.mask_nan = drill.nan_inputs_on is not None
        if drill.nan_inputs_on == rank:
            x[1, 1] = math.nan
        net.blocks[1].poison = kinds.get("grad")
        net.blocks[1].poison_output = kinds.get("forward")
        handle = None
        if "weight_grad" in kinds:
            bad = kinds["weight_grad"]
            handle = net.blocks[2].linear.weight.register_hook(
                lambda g, bad=bad: torch.where(g == g.flatten()[0], bad, g)
            )
        last = micro == drill.micro_steps - 1
        quiet = drill.no_sync and not last and isinstance(model, DistributedDataParallel)
        with model.no_sync() if quiet else contextlib.nullcontext():
            loss = nn.functional.mse_loss(model(x), y) / drill.micro_steps
            if "loss" in kinds:
                loss = loss * kinds["loss"]
            total += float(loss.detach())
            loss.backward()
        if handle is not None:
            handle.remove()
    for fault in faults:
        if fault.kind == "reduced" and fault.rank in (None, rank):
            net.outlet.weight.grad.view(-1)[0] = fault.value
        if fault.kind == "update" and fault.rank in (None, rank):
            for group in optimizer.param_groups:
                group["lr"] = math.inf
    if drill.clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), drill.clip)
    optimizer.step()
    for fault in faults:
        if fault.kind == "update":
            for group in optimizer.param_groups:
                group["lr"] = 1e-2
    return total
