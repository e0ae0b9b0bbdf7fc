"""Scripts in which skipping bad steps cannot help: `train(rank, how, journal)`."""

from __future__ import annotations

import math
from typing import Any

import rankworld
import torch
import torch.distributed as dist
from torch import nn

from firstbad.agent.errors import RunStopped
from firstbad.agent.guard import Guard


class Net(nn.Module):
    """Nothing in it saturates, so huge weights overflow the loss; its mask is infinite by design."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(4, 8)
        self.outlet = nn.Linear(8, 2)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outlet(self.inlet(x)) + self.mean


def train(rank: int, how: str, journal: str) -> dict[str, Any]:
    """Eight steps at most, of which two bad ones in a row may be skipped; what the stop says."""
    guard = Guard(journal=journal, run_id="r", max_consecutive_skips=0 if how == "once" else 2)
    torch.manual_seed(1)
    net = Net()
    together = dist.is_initialized()
    if rank == 0:
        torch.save(net.state_dict(), rankworld.folder() / "step-100.pt")
        bad = {name: value.clone() for name, value in net.state_dict().items()}
        bad["inlet.weight"][0, 0] = math.nan
        torch.save(bad, rankworld.folder() / "step-200.pt")
    if together:
        dist.barrier()
    name = {"loaded_bad": "step-200.pt", "batches": "step-100.pt"}.get(how)
    if name is not None:
        net.load_state_dict(torch.load(rankworld.folder() / name))
    model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False) if together else net
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    error: RunStopped | None = None
    try:
        for step in range(8):
            _before(how, step, rank, net, optimizer)
            optimizer.zero_grad()
            x = torch.full((2, 4), 1.0 + rank)
            everywhere, here = how in ("batches", "state", "buffer"), how in ("one_rank", "once") and rank == 1
            if step >= 3 and (everywhere or here):
                x = x * math.nan
            model(x).square().mean().backward()
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] = 1e-3
    except RunStopped as stopped:
        error = stopped
    guard.__exit__(type(error) if error else None, error, None)
    assert error is not None
    found = error.finiteness
    assert found is not None
    return {
        "text": str(error).replace(str(rankworld.folder()), "DIR"),
        "step": error.step,
        "last_good_step": error.last_good_step,
        "finite": (found.parameters, found.buffers, found.optimizer_state),
        "load": error.load.replace(str(rankworld.folder()), "DIR"),
    }


def _before(how: str, step: int, rank: int, net: Net, optimizer: torch.optim.Optimizer) -> None:
    """What goes wrong before step 3."""
    if step != 3:
        return
    if how in ("huge_update", "infinite_update"):
        for group in optimizer.param_groups:
            group["lr"] = 1e30 if how == "huge_update" else math.inf
    elif how == "state":
        optimizer.state[net.outlet.bias]["exp_avg_sq"][0] = math.inf
    elif how == "buffer" and rank == 1:
        net.mean[0] = math.nan
    elif how == "loaded_later":
        net.load_state_dict(torch.load(rankworld.folder() / "step-200.pt"))
