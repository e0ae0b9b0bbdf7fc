"""What the injector knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from firstbad.schema import Stage


@dataclass(frozen=True, slots=True)
class Sighting:
    """A bad value was made here, at this moment."""

    step: int
    micro_step: int
    rank: int
    stage: Stage
    module: str | None
    """The module that holds the faulty operator or weight; None when the fault is in no module, or in all."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The first bad value of a run, from the logs of all ranks."""

    step: int
    """The attempted update that must be found bad."""
    origin_step: int
    """The attempted update that made the bad value."""
    micro_step: int
    stage: Stage
    ranks: frozenset[int]
    """Ranks at which it began; more than one when they share a fault."""
    module: str | None

    @classmethod
    def of(cls, log: Iterable[Sighting]) -> Truth:
        """The causally first sightings. A bad update is found in the step after it."""
        log = list(log)
        if not log:
            raise LookupError("the injector made no bad value: the cell has no such place")
        first = min((sighting.step, sighting.micro_step) for sighting in log)
        found = [sighting for sighting in log if (sighting.step, sighting.micro_step) == first]
        update = found[0].stage is Stage.UPDATE
        return cls(
            step=first[0] + update,
            origin_step=first[0],
            micro_step=0 if update else first[1],
            stage=found[0].stage,
            ranks=frozenset(sighting.rank for sighting in found),
            module=found[0].module,
        )
