"""Small training scripts that are not drills of one injected fault: `script(rank, drill, journal)`."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from drills import Drill, bits
from torch import nn

from firstbad.agent.guard import Guard


def lopsided(rank: int, drill: Drill, journal: str) -> Any:
    """Rank 1's guard has decided one step fewer than rank 0's when they meet."""
    guard = Guard(journal=journal)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    if rank == 0:
        guard._step += 1  # as if rank 1's loop had left one decision out
    dist.barrier()
    try:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return None, ""


def leave_early(rank: int, drill: Drill, journal: str) -> Any:
    """Rank 1 dies without a word before the third decision."""
    Guard(journal=journal)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.ones(1, 2)).sum().backward()
        if rank == 1 and step == 2:
            os.kill(os.getpid(), 9)
        try:
            optimizer.step()
        except RuntimeError as error:
            return type(error).__name__, str(error)
    return None, ""


def masked(rank: int, drill: Drill, journal: str | None) -> dict[str, Any]:
    """Supervised fine-tuning in small: rank 1's micro-batch of step 1 has no label;
    `drill.optimizer` names the form."""
    torch.manual_seed(0)
    guard = Guard(journal=journal) if drill.guard else None
    net: Any = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        if step in drill.leave_out:
            continue
        tokens = torch.arange(6).reshape(1, 6) + rank
        mask = torch.zeros(1, 6) if (rank, step) == (1, 1) else torch.tensor([[0.0, 0, 0, 1, 1, 1]])
        if guard is not None:
            guard.batch(sample_ids=[f"{step}/{rank}"], valid_tokens=int(mask.sum()))
        optimizer.zero_grad()
        logits = model(tokens).flatten(0, 1)
        if drill.optimizer == "ignore_index":
            labels = torch.where(mask > 0, tokens, -100).flatten()
            loss = nn.functional.cross_entropy(logits, labels, ignore_index=-100)
        else:
            token_loss = nn.functional.cross_entropy(logits, tokens.flatten(), reduction="none")
            loss = (token_loss * mask.flatten()).sum() / mask.sum()
        loss.backward()
        optimizer.step()
    if guard is not None:
        guard.__exit__(None, None, None)
    return {"params": bits(net.parameters()), "finite": all(bool(torch.isfinite(p).all()) for p in net.parameters())}
