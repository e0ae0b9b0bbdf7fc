"""The part of the matrix that every test run plays."""

from __future__ import annotations

from tests.drills.cell import Cell
from tests.drills.matrix import cells


def sample() -> list[Cell]:
    """Few cells that together have every parallelism and every value of every other column."""
    # Where several would do: gradients, which are hardest to place, and the highest rank; a wrong guard says rank 0.
    left = sorted(cells(), key=lambda cell: (cell.stage.label != "grad", -(cell.rank or 0)))
    chosen: list[Cell] = []
    seen: set[tuple[str, object]] = set()
    while True:
        best = max(left, key=lambda cell: len(_values(cell) - seen))
        if _values(best) <= seen:
            return chosen
        chosen.append(best)
        seen |= _values(best)


def _values(cell: Cell) -> set[tuple[str, object]]:
    return {(name, getattr(cell, name)) for name in Cell.__dataclass_fields__}


def witness(parallelism: str) -> Cell:
    """A cell in which a rank above 0 is guilty while others see the consequences: a wrong guard blames another."""
    order = ("loss", "param", "input")
    found = [cell for cell in cells() if cell.parallelism == parallelism and cell.rank and cell.stage.label in order]
    return min(found, key=lambda cell: (order.index(cell.stage.label), cell.world))
