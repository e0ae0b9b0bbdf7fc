"""A sample of the drill matrix; `python -m tests.drills` plays all of it."""

from __future__ import annotations

import pytest
from tests.drills.__main__ import main
from tests.drills.cell import Cell
from tests.drills.matrix import cells
from tests.drills.parallelisms import REGISTRY
from tests.drills.player import Player
from tests.drills.sample import sample


@pytest.fixture(scope="module")
def player() -> Player:
    """One for all cells, so that references are shared."""
    return Player()


@pytest.mark.parametrize("cell", sample(), ids=lambda cell: cell.id)
def test_the_ledger_says_what_the_injector_did_and_the_weights_are_those_of_a_run_without_that_update(
    player: Player, cell: Cell
) -> None:
    """Action on all ranks, rank, micro step, stage, module, bits."""
    assert [str(finding) for finding in player.play(cell)] == []


def test_the_command_plays_what_it_is_asked_for_and_says_how_many_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 when all are exact, 1 with a wrong guard; `--list` plays nothing."""
    pieces = ["ddp/fp32/adamw/loss", "s1.m0.r1of2"]

    assert main([*pieces, "--list"]) == 0
    listed = capsys.readouterr().out.split()
    assert main(pieces) == 0
    assert f"{len(listed)} of {len(listed)} exact" in capsys.readouterr().out
    assert main([*pieces, "--mutant", "lowest_rank"]) == 1
    assert f"0 of {len(listed)} exact" in capsys.readouterr().out
    assert main(["no such cell"]) == 1


def test_the_matrix_is_large_and_the_same_every_time_and_leaves_no_parallelism_out() -> None:
    """At least 400 cells, no two alike, in a fixed order."""
    matrix = cells()

    assert len({cell.id for cell in matrix}) == len(matrix) >= 400
    assert matrix == cells()
    assert {cell.parallelism for cell in matrix} == set(REGISTRY)
