"""One case of the matrix."""

from __future__ import annotations

from dataclasses import dataclass

from tests.drills.faults import Fault

from firstbad.schema import Stage


@dataclass(frozen=True, slots=True)
class Cell:
    """
    A training run with one fault in it.

    `rank` is where the fault is put, None is every rank. Ranks that read the same batch (tensor parallel) share a fault
    of the data. `step` is the attempted update, `micro_step` the position in its accumulation or pipeline.
    """

    parallelism: str
    precision: str
    optimizer: str
    fault: Fault
    rank: int | None
    step: int
    micro_step: int
    world: int
    rival: int | None = None
    """A rank that has the same fault too, but in the last micro step: it is not the first offender."""

    @property
    def stage(self) -> Stage:
        """Where the first bad value appears."""
        return self.fault.stage

    @property
    def id(self) -> str:
        """A name that a person can pass to `python -m tests.drills`."""
        rank = "all" if self.rank is None else f"r{self.rank}"
        rival = "" if self.rival is None else f".then_r{self.rival}"
        where = f"s{self.step}.m{self.micro_step}.{rank}of{self.world}{rival}"
        return f"{self.parallelism}/{self.precision}/{self.optimizer}/{self.stage.label}/{self.fault}/{where}"
