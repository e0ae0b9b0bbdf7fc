"""The matrix can tell a wrong guard from the right one, under every parallelism."""

from __future__ import annotations

import pytest
from tests.drills.matrix import cells
from tests.drills.mutants import Mutant
from tests.drills.player import Player
from tests.drills.sample import witness

PARALLEL = sorted({cell.parallelism for cell in cells() if cell.world > 1})


@pytest.mark.parametrize("parallelism", PARALLEL)
def test_every_parallelism_has_a_cell_in_which_each_mutant_blames_a_wrong_rank(parallelism: str) -> None:
    """The guard as it is names the right one in the same cell."""
    player, cell = Player(), witness(parallelism)

    assert "rank" not in {finding.what for finding in player.play(cell, bits=False)}
    for mutant in Mutant:
        assert "rank" in {finding.what for finding in player.play(cell, mutant, bits=False)}, f"{mutant}: {cell.id}"
