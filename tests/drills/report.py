"""Plays chosen cells and prints what is not exact."""

from __future__ import annotations

import time
from collections import Counter

from tests.drills.cell import Cell
from tests.drills.judge import Finding
from tests.drills.mutants import Mutant
from tests.drills.player import Player


def play(chosen: list[Cell], mutant: Mutant | None = None) -> bool:
    """
    Play cells, print one line each and every finding at the end.

    Returns: whether there were any, and all of them were exact.
    """
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
        print(f"\n{cell.id}")
        for finding in findings:
            print(f"    {finding}")
    _summarise(chosen, inexact)
    took = time.monotonic() - begun
    print(f"{took:.0f} s, slowest {slowest[0]:.1f} s: {slowest[1]}")
    print(f"{len(chosen) - len(inexact)} of {len(chosen)} exact")
    return bool(chosen) and not inexact


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
