"""FP16-style loops with a loss scaler, on the CPU: the scaler's arithmetic is the same there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from drills import bits, state_bits
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from firstbad.agent.guard import Guard


@dataclass(frozen=True)
class Loop:
    """One training loop; its gradients are each rank's own, as those of shards and experts are."""

    sharded: bool = False
    fused: bool = False
    unscale: bool = False
    overflows: tuple[int, ...] = ()
    """Steps in which a gradient overflows."""
    bad_losses: tuple[int, ...] = ()
    """Steps whose loss is NaN."""
    ranks: tuple[int, ...] = (0, 1)
    """Ranks on which that happens."""
    clip: bool = False
    clip_scaled: bool = False
    two: bool = False
    """Two models and optimizers share the scaler; the fault is in the second."""
    half: bool = False
    """Parameters are float16, which `unscale_` refuses."""
    steps: int = 5
    init_scale: float = 1024.0
    guard: bool = True
    settings: dict[str, Any] = field(default_factory=dict)


def _model(half: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    return model.half() if half else model


def train(rank: int, loop: Loop, journal: str) -> dict[str, Any]:
    """Run the loop; its weights, scale and growth tracker after each step."""
    guard = Guard(journal=journal, **loop.settings) if loop.guard else None
    models = [_model(loop.half) for _ in range(1 + loop.two)]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01, fused=loop.fused) for m in models]
    cls = ShardedGradScaler if loop.sharded else torch.amp.GradScaler
    scaler = cls("cpu", init_scale=loop.init_scale, growth_interval=3)
    out: dict[str, Any] = {"params": [], "scale": [], "growth": [], "error": None, "norms": []}
    hit = rank in loop.ranks
    try:
        for step in range(loop.steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            x = torch.ones(2, 4, dtype=torch.float16 if loop.half else torch.float32)
            loss = sum(model(x).float().square().mean() for model in models)
            if hit and step in loop.bad_losses:
                loss = loss * math.nan
            scaler.scale(loss).backward()
            if hit and step in loop.overflows:
                next(models[-1].parameters()).grad.view(-1)[0] = math.inf  # type: ignore[union-attr]
            if loop.clip_scaled:
                nn.utils.clip_grad_norm_(models[0].parameters(), 1.0)
            if loop.unscale:
                for optimizer in optimizers:
                    scaler.unscale_(optimizer)
            if loop.clip:
                out["norms"].append(float(nn.utils.clip_grad_norm_(models[0].parameters(), 1.0)))
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            out["params"].append([bits(model.parameters()) for model in models])
            out["scale"].append(scaler.get_scale())
            out["growth"].append(scaler._get_growth_tracker())
    except RuntimeError as error:
        out["error"] = type(error).__name__, str(error)
    out["finite"] = all(bool(torch.isfinite(p).all()) for model in models for p in model.parameters())
    out["state"] = [state_bits(optimizer) for optimizer in optimizers]
    if guard is not None:
        guard.__exit__(None, None, None)
    elif dist.is_initialized():
        dist.barrier()
    return out
