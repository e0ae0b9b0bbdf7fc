"""
Play the matrix: `python -m tests.drills [PART ...] [--only LIST]`.

Each PART is a piece of a cell's id (see `Cell.id`); a cell is played when it has all of them. Without any the whole
matrix is played. The exit code is 0 only when every cell is exact.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.drills.cell import Cell
from tests.drills.judge import Finding
from tests.drills.matrix import cells
from tests.drills.player import Player


def main(arguments: list[str] | None = None) -> int:
    """Play, report, and say by the exit code whether all is exact."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description="Play the drill matrix.")
    parser.add_argument("part", nargs="*", help="a piece of the ids of the cells to play")
    parser.add_argument("--list", action="store_true", help="print the ids instead of playing")
    options = parser.parse_args(arguments)
    chosen = [cell for cell in cells() if all(part in cell.id for part in options.part)]
    if options.list:
        print("\n".join(cell.id for cell in chosen))
        return 0
    return _play(chosen)


def _play(chosen: list[Cell]) -> int:
    player, begun = Player(), time.monotonic()
    inexact: list[tuple[Cell, list[Finding]]] = []
    for number, cell in enumerate(chosen, 1):
        findings = player.play(cell)
        if findings:
            inexact.append((cell, findings))
        print(f"{number}/{len(chosen)} {'INEXACT' if findings else 'exact'} {cell.id}", flush=True)
    for cell, findings in inexact:
        print(f"\n{cell.id}")
        for finding in findings:
            print(f"    {finding}")
    groups = Counter((cell.parallelism, cell.precision, cell.stage.label) for cell, _ in inexact)
    for (parallelism, precision, stage), count in sorted(groups.items()):
        print(f"inexact: {parallelism}, {precision}, stage {stage}: {count}")
    exact, took = len(chosen) - len(inexact), time.monotonic() - begun
    print(f"{exact} of {len(chosen)} exact ({took:.0f} s)")
    return 0 if exact == len(chosen) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
