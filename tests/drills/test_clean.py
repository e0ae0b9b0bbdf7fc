"""A run with the guard and no fault is bit for bit the run without it, in every configuration and at any world size."""

from __future__ import annotations

from pathlib import Path

import ledger
import pytest
import rankworld
from tests.drills.cell import Cell
from tests.drills.matrix import cells
from tests.drills.train import clean

from firstbad.schema import RunEnd, Step, Verdict

WIDER = {"ddp": (2, 3, 4), "ddp_no_sync": (3,), "ddp_synced": (3, 4), "fsdp2": (2, 3, 4), "fsdp2_accumulation": (3,)}
"""Worlds beside those of the matrix: at 3 ranks a mean is no exact shift of bits."""


def configurations() -> list[tuple[Cell, int]]:
    """One cell for each parallelism, precision and optimizer of the matrix, with each of its worlds."""
    seen: dict[tuple[object, ...], tuple[Cell, int]] = {}
    for cell in cells():
        worlds = {cell.world}
        if cell.precision == "fp32" and cell.optimizer == "adamw":
            worlds |= set(WIDER.get(cell.parallelism, ()))
        for world in worlds:
            seen.setdefault((cell.parallelism, cell.precision, cell.optimizer, world), (cell, world))
    return list(seen.values())


@pytest.mark.parametrize(
    ("cell", "world"), configurations(), ids=lambda v: "/".join(v.id.split("/")[:3]) if isinstance(v, Cell) else str(v)
)
def test_a_clean_run_is_bit_equal_to_the_same_without_a_guard(tmp_path: Path, cell: Cell, world: int) -> None:
    """Parameters and optimizer state of every rank; nothing is called bad, no observer fails, every step has a row."""
    group = world > 1
    guarded = rankworld.run(world, clean, cell, str(tmp_path), group=group)
    bare = rankworld.run(world, clean, cell, None, group=group)

    assert [(a.parameters, a.optimizers, a.error) for a in guarded] == [
        (a.parameters, a.optimizers, None) for a in bare
    ]
    records = ledger.records(tmp_path)
    assert not [record for record in records if isinstance(record, Verdict)]
    assert {record.observers_off for record in records if isinstance(record, RunEnd)} == {()}
    rows = sorted((record.rank, record.step) for record in records if isinstance(record, Step))
    assert rows == [(rank, step) for rank in range(world) for step in range(3)]
