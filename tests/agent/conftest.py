"""Fixtures of the agent's tests: a journal folder that ranks share, and the ledger read back from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import drills
import pytest
import rankworld
from drills import Drill
from played import Play, Played


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a drill in real gloo ranks and read its journal; `world=1` runs without a process group."""
    runs = 0

    def run(world: int, drill: Drill, function: Any = drills.train, timeout: float = 90.0) -> Played:
        nonlocal runs
        runs += 1
        journal = tmp_path / f"journal{runs}"
        ranks = rankworld.run(world, function, drill, str(journal), group=world > 1, timeout=timeout)
        return Played(ranks, journal)

    return run
