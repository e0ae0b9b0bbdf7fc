"""Plays cells in forked ranks and hands them to the judge."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import rankworld
from tests.drills.cell import Cell
from tests.drills.judge import Finding, judge
from tests.drills.mutants import Mutant
from tests.drills.train import LASTING, Account, bad_step, reference, watched

from firstbad.schema import Stage


@dataclass(slots=True)
class Player:
    """Plays cells; references that cells share are run once."""

    timeout: float = 60.0
    """Seconds after which a rank without a result counts as hanging."""
    _references: dict[object, list[Account]] = field(default_factory=dict)

    def play(self, cell: Cell, mutant: Mutant | None = None, *, bits: bool = True) -> list[Finding]:
        """
        What is not exact about a cell. A guard that hangs or kills a rank is a finding too.

        Args:
            mutant: a wrong guard to play with.
            bits: compare the weights with those of a reference run too.
        """
        with tempfile.TemporaryDirectory(prefix="drill-") as folder:
            try:
                expected = self._reference(cell) if bits else None
            except rankworld.RankFailed as failure:
                return [Finding("the drill itself, without a guard", "a result from each rank", str(failure)[-600:])]
            try:
                accounts = self._run(cell, watched, cell, folder, mutant)
            except rankworld.RankFailed as failure:
                return [Finding("ranks", "a result from each", str(failure)[-600:])]
            return judge(cell, accounts, expected, Path(folder))

    def _reference(self, cell: Cell) -> list[Account]:
        key = _reference_key(cell)
        if key not in self._references:
            self._references[key] = self._run(cell, reference, cell)
        return self._references[key]

    def _run(self, cell: Cell, function: object, *args: object) -> list[Account]:
        return rankworld.run(cell.world, function, *args, timeout=self.timeout, group=cell.world > 1)  # type: ignore[arg-type]


def _reference_key(cell: Cell) -> object:
    """Cells with equal keys have the same run without a guard."""
    run = (cell.parallelism, cell.precision, cell.optimizer, cell.world, bad_step(cell))
    backs_off = cell.stage in (Stage.GRAD, Stage.GRAD_REDUCED)
    return (*run, cell.fault, cell.rank) if cell.stage in LASTING or cell.fault == "scale" else (*run, backs_off)
