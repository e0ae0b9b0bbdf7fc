"""
Faults to order, for a user's own drills: does the ledger name what was put in, and do all ranks act alike?

    from firstbad.agent.testing import FaultInjector, poison_gradient, poison_input

    inject = FaultInjector(model, poison_input(step=3, rank=1), poison_gradient("layers.2", step=5, rank=0))
    for step in range(10):
        with inject.at(step):                       # forward and backward of one micro step
            model(inject.inputs(x)).mean().backward()
        optimizer.step()

An injector touches what the script itself holds: a batch, a module's output, a weight, the process. It works with and
without a guard, so a drill can also show what a fault does to a bare run.
"""

from __future__ import annotations

from firstbad.agent.testing.faults import (
    Fault,
    FaultKind,
    InjectionFailed,
    hang,
    kill,
    poison_gradient,
    poison_input,
    poison_parameter,
)
from firstbad.agent.testing.injector import FaultInjector

__all__ = [
    "Fault",
    "FaultInjector",
    "FaultKind",
    "InjectionFailed",
    "hang",
    "kill",
    "poison_gradient",
    "poison_input",
    "poison_parameter",
]
