"""
Play the matrix: `python -m tests.drills [PIECE ...] [--list] [--mutant NAME]`.

Each PIECE is a part of a cell's id (see `Cell.id`); a cell is played when its id has all of them. Without any the whole
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
from tests.drills.mutants import Mutant
from tests.drills.player import Player
from tests.drills.sample import known


def main(arguments: list[str] | None = None) -> int:
    """Play, report, and say by the exit code whether all is exact."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description="Play the drill matrix.")
    parser.add_argument("piece", nargs="*", help="a part of the ids of the cells to play")
    parser.add_argument("--list", action="store_true", help="print the ids instead of playing")
    mutants = {mutant.name.lower(): mutant for mutant in Mutant}
    parser.add_argument("--mutant", choices=mutants, help="play with a guard that is wrong on purpose")
    options = parser.parse_args(arguments)
    chosen = [cell for cell in cells() if all(piece in cell.id for piece in options.piece)]
    if options.list:
        print("\n".join(cell.id for cell in chosen))
        return 0
    return _play(chosen, mutants.get(options.mutant))


def _play(chosen: list[Cell], mutant: Mutant | None) -> int:
    player, begun = Player(), time.monotonic()
    inexact: dict[Cell, list[Finding]] = {}
    slowest = (0.0, "")
    for number, cell in enumerate(chosen, 1):
        started = time.monotonic()
        findings = player.play(cell, mutant)
        slowest = max(slowest, (time.monotonic() - started, cell.id))
        if findings:
            inexact[cell] = findings
        print(f"{number}/{len(chosen)} {'INEXACT' if findings else 'exact'} {cell.id}", flush=True)
    for cell, findings in inexact.items():
        print(f"\n{cell.id}{'' if not known(cell) else '  (in the sample of every test run)'}")
        for finding in findings:
            print(f"    {finding}")
    _summarise(chosen, inexact)
    took = time.monotonic() - begun
    print(f"{took:.0f} s, slowest {slowest[0]:.1f} s: {slowest[1]}")
    print(f"{len(chosen) - len(inexact)} of {len(chosen)} exact")
    return 0 if chosen and not inexact else 1


def _summarise(chosen: list[Cell], inexact: dict[Cell, list[Finding]]) -> None:
    """One line for each parallelism, precision and stage that is not exact."""
    of = Counter((cell.parallelism, cell.precision, cell.stage.label) for cell in chosen)
    groups = Counter((cell.parallelism, cell.precision, cell.stage.label) for cell in inexact)
    if groups:
        print()
    for group, count in sorted(groups.items()):
        what = {finding.what.partition(" of rank")[0] for cell, findings in inexact.items() for finding in findings
                if (cell.parallelism, cell.precision, cell.stage.label) == group}  # fmt: skip
        print(f"inexact: {' '.join(group)}: {count} of {of[group]} ({', '.join(sorted(what))})")


if __name__ == "__main__":
    sys.exit(main())
