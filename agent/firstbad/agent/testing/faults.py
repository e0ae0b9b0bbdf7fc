"""The faults that can be ordered: what goes wrong, on which rank, step and micro step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from firstbad.schema import FirstbadError


class InjectionFailed(FirstbadError):
    """A fault that was due could not be put in, so the drill proves nothing; the text says why."""


class FaultKind(StrEnum):
    """What goes wrong."""

    INPUT = "input"
    GRADIENT = "gradient"
    PARAMETER = "parameter"
    HANG = "hang"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a drill; made by the functions below."""

    kind: FaultKind
    step: int
    micro_step: int
    rank: int | None
    """Global rank; None means every rank."""
    value: float = math.nan
    name: str | None = None
    """Module (gradient) or parameter, as the model itself names it, without the parts that wrappers put in."""
    seconds: float = math.inf

    def __str__(self) -> str:
        who = "every rank" if self.rank is None else f"rank {self.rank}"
        what = f" {self.value} in {self.name}" if self.name else ""
        return f"{self.kind.value}{what} at step {self.step}, micro step {self.micro_step}, {who}"


def poison_input(*, step: int, rank: int | None, micro_step: int = 0, value: float = math.nan) -> Fault:
    """One element of the first floating-point tensor given to `FaultInjector.inputs`. Ledger: stage input."""
    return Fault(FaultKind.INPUT, step, micro_step, rank, value)


def poison_gradient(module: str, *, step: int, rank: int | None, micro_step: int = 0, value: float = math.nan) -> Fault:
    """
    One element of the gradient that reaches the output of `module` in the backward. Ledger: stage grad, this module.

    The forward stays as it is. What lies behind a ReLU that is off would never see the value: name a module whose
    gradient is used, as a linear layer or a whole block.
    """
    return Fault(FaultKind.GRADIENT, step, micro_step, rank, value, module)


def poison_parameter(
    parameter: str, *, step: int, rank: int | None, micro_step: int = 0, value: float = math.nan
) -> Fault:
    """
    One element of this rank's part of `parameter`, written before the forward; it stays there.

    Ledger: stage param when it is there before the first step, else stage update of the step before, since weights
    that were good a step ago are bad now. Skipping cannot heal weights: the run stops when its budget is used up.
    """
    return Fault(FaultKind.PARAMETER, step, micro_step, rank, value, parameter)


def hang(*, step: int, rank: int, micro_step: int = 0, seconds: float = math.inf) -> Fault:
    """The rank sleeps before the forward; its peers wait in their next collective, at most for the group's timeout."""
    return Fault(FaultKind.HANG, step, micro_step, rank, seconds=seconds)


def kill(*, step: int, rank: int, micro_step: int = 0) -> Fault:
    """The rank's process gets SIGKILL before the forward: no run end is written, as when a node is lost."""
    return Fault(FaultKind.KILL, step, micro_step, rank)
