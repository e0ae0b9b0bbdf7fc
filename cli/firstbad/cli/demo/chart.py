"""A curve in text: dots of a braille cell, or stars where a terminal has no such signs."""

from __future__ import annotations

import math
from collections.abc import Sequence

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of the dot at [column][row] of a cell."""


def draw(
    values: Sequence[float], *, count: int, low: float, high: float, width: int, height: int, plain: bool = False
) -> list[str]:
    """
    `height` lines of `width` characters: values against their index, 0 to `count` - 1; what is not finite is a hole.

    A column that stands for several values shows their mean; neighbouring columns are joined.
    """
    across, down = (1, 1) if plain else (2, 4)
    columns, rows = width * across, height * down
    cells = [[0] * width for _ in range(height)]
    before: int | None = None
    for column in range(columns):
        here = _row(values, column * count / columns, (column + 1) * count / columns, low, high, rows)
        if here is not None:
            start = here if before is None or abs(here - before) < 2 else before + (1 if here > before else -1)
            for row in range(min(start, here), max(start, here) + 1):
                cells[row // down][column // across] |= _DOTS[column % across][row % down]
        before = here
    if plain:
        return ["".join("*" if cell else " " for cell in line) for line in cells]
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in line) for line in cells]


def column_of(index: int, *, count: int, width: int) -> int:
    """The character under which a value stands."""
    return min(width - 1, index * width // max(count, 1))


def _row(values: Sequence[float], start: float, end: float, low: float, high: float, rows: int) -> int | None:
    # At least one value a column: with more columns than values each value fills several.
    first = int(start)
    here = [value for value in values[first : max(first + 1, math.ceil(end))] if math.isfinite(value)]
    if not here:
        return None
    share = (sum(here) / len(here) - low) / ((high - low) or 1.0)
    return min(rows - 1, max(0, round((1.0 - share) * (rows - 1))))
