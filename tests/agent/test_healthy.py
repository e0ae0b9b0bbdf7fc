"""No false alarm: many healthy steps whose gradients are huge, but finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drills import Drill
from played import Play
from torch import nn

from firstbad.agent.guard import Guard
from firstbad.schema import RunEnd, Step, Verdict

STEPS = 10_000


def huge(rank: int, drill: Drill, journal: str) -> Any:
    """Gradients up to the largest finite number of their type, whose L2 norm overflows float32 too."""
    guard = Guard(journal=journal)
    generator = torch.Generator().manual_seed(rank)
    weight = nn.Parameter(torch.zeros(64, dtype=drill.dtype))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    top = torch.finfo(drill.dtype).max
    for _ in range(drill.steps):
        optimizer.zero_grad()
        sizes = torch.rand(64, generator=generator)
        signs = torch.randint(0, 2, (64,), generator=generator) * 2 - 1
        wanted = (sizes * signs * top).to(drill.dtype)
        wanted[0] = top
        (weight * wanted).sum().backward()
        optimizer.step()
    guard.__exit__(None, None, None)
    return {"finite": bool(torch.isfinite(weight.grad).all()) if weight.grad is not None else None}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_huge_but_finite_gradients_are_never_called_bad(play: Play, dtype: torch.dtype) -> None:
    """An overflowing norm is a suspicion that a second, exact look settles."""
    played = play(1, Drill(steps=STEPS, dtype=dtype), huge, timeout=240)

    assert played.one("finite")
    assert not played.of(Verdict)
    assert {row.action.value for row in played.of(Step)} == {"apply"}
    assert played.of(RunEnd)[0].steps == STEPS
