"""A run of one cell on one rank: with the guard, or as the reference without it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from tests.drills import state
from tests.drills.cell import Cell
from tests.drills.injector import Injector
from tests.drills.mutants import Mutant
from tests.drills.parallelisms import REGISTRY
from tests.drills.truth import Sighting
from torch import distributed as dist

from firstbad.agent.guard import Guard
from firstbad.schema import Stage

LASTING = frozenset({Stage.PARAM, Stage.UPDATE})
"""Stages whose fault stays in the weights: leaving an update out cannot cure it."""


@dataclass(slots=True)
class Account:
    """What a rank says after a run."""

    log: list[Sighting] = field(default_factory=list)
    parameters: str = ""
    optimizers: str = ""
    error: str | None = None


def bad_step(cell: Cell) -> int:
    """The attempted update that is bad: the next one when the fault is in an update."""
    return cell.step + (cell.stage is Stage.UPDATE)


def watched(rank: int, cell: Cell, journal: str, mutant: Mutant | None) -> Account:
    """The cell with its fault, under the guard."""
    if mutant is not None:
        mutant.apply()
    logging.getLogger("firstbad.agent").setLevel(logging.ERROR)  # what it has to say stands in the ledger
    guard = Guard(journal=journal, min_loss_scale=2.0**-60)  # the scripts back off at once, far below 1
    try:
        account = _train(rank, cell, armed=True, leave_out=None)
    except RuntimeError as error:
        guard.__exit__(type(error), error, None)
        return Account(error=f"{type(error).__name__}: {error}"[:400])
    guard.__exit__(None, None, None)
    return account


def reference(rank: int, cell: Cell) -> Account:
    """The same training without a guard that leaves the bad update out; only a fault that lasts in weights is made."""
    return _train(rank, cell, armed=cell.stage in LASTING, leave_out=bad_step(cell))


def clean(rank: int, cell: Cell, journal: str | None) -> Account:
    """Three steps of the cell's script without its fault; with a guard where there is a journal."""
    guard = Guard(journal=journal) if journal is not None else None
    torch.manual_seed(7)
    script_class = REGISTRY[cell.parallelism]
    injector = Injector(cell, rank, armed=False, micro_steps=script_class.micro_steps)
    script = script_class(cell, rank, injector)
    script.run(3)
    account = Account(injector.log, state.parameters(script), state.optimizers(script))
    if dist.is_initialized():
        dist.barrier()
    if guard is not None:
        guard.__exit__(None, None, None)
    return account


def _train(rank: int, cell: Cell, *, armed: bool, leave_out: int | None) -> Account:
    torch.manual_seed(7)
    script_class = REGISTRY[cell.parallelism]
    injector = Injector(cell, rank, armed=armed, micro_steps=script_class.micro_steps)
    script = script_class(cell, rank, injector)
    recovers = script.recovers and cell.stage not in LASTING
    script.run(bad_step(cell) + 1 + recovers, leave_out)
    account = Account(injector.log, state.parameters(script), state.optimizers(script))
    if dist.is_initialized():
        dist.barrier()  # a rank that leaves first would cut its peers' last collective
    return account
