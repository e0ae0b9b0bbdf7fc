"""Loops whose model writes buffers in its forward."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from drills import Drill, bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from firstbad.agent.guard import Guard


class Counting(nn.Module):
    """BatchNorm, a buffer that is replaced in every forward, one that is written late, and a table that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.norm, self.outlet = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("late", torch.zeros(1))
        self.register_buffer("table", torch.arange(30_000.0))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        self.calls += 1
        if self.calls > 4:
            self.late += x.detach().sum()
        return self.outlet(self.norm(self.inlet(x)))


def normalises(rank: int, drill: Drill, journal: str) -> Any:
    """`drill.faults` are NaN inputs; buffers, also those that were replaced, are compared bit for bit."""
    guard = Guard(journal=journal, **drill.settings) if drill.guard else None
    torch.manual_seed(0)
    model = Counting()
    data: nn.Module = DistributedDataParallel(model) if drill.ddp and dist.is_initialized() else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    after = []
    for step in range(drill.steps):
        if step in drill.leave_out:
            model.calls += drill.micro_steps
            if drill.settings.get("lr_on_skip") != "hold":
                scheduler.step()
        else:
            optimizer.zero_grad()
            for micro in range(drill.micro_steps):
                x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step * 10 + micro * 3 + rank))
                if drill.guard and any(fault.hits(step, micro, rank) for fault in drill.faults):
                    x[0, 0] = math.nan
                data(x).square().mean().backward()
            optimizer.step()
            scheduler.step()
        after.append([bits([buffer.reshape(-1)]) for buffer in model.buffers()])
    table = model.table.untyped_storage().data_ptr()
    if guard is not None:
        kept = [k for entries in guard.panel.shield._kept.values() for k in entries if k.copy is not None]
        copied = [k for k in kept if k.buffer.untyped_storage().data_ptr() == table]
        guard.__exit__(None, None, None)
    rate = optimizer.param_groups[0]["lr"]
    return {
        "params": bits(model.parameters()),
        "buffers": after,
        "rate": rate,
        "copies_table": bool(guard is not None and copied),
    }
