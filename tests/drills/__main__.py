"""
Play the matrix: `python -m tests.drills [PIECE ...] [--list] [--mutant NAME]`.

Each PIECE is a part of a cell's id (see `Cell.id`); a cell is played when its id has all of them. Without any the whole
matrix is played. The exit code is 0 only when every cell is exact.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Play and report; the exit code says whether all is exact."""
    # What tests share (forked ranks, reading of journals) lies in a folder beside, as pytest knows from pyproject.toml.
    sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
    from tests.drills import report
    from tests.drills.matrix import cells
    from tests.drills.mutants import Mutant

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
    return 0 if report.play(chosen, mutants.get(options.mutant)) else 1


if __name__ == "__main__":
    sys.exit(main())
