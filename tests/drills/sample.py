"""The part of the matrix that every test run plays."""

from __future__ import annotations

from tests.drills.cell import Cell
from tests.drills.matrix import cells
from tests.drills.precision import PRECISIONS

EXACT = frozenset(
    {
        "single",
        "single_accumulation",
        "single_gan",
        "single_sparse",
        "single_two_optimizers",
        "ddp",
        "ddp_bucket_view",
        "ddp_static_graph",
        "ddp_synced",
        "ddp_no_sync",
        "ddp_fp16_hook",
        "ddp_builtin_hook",
        "ddp_powersgd",
        "ddp_two_optimizers",
        "ddp_gan",
        "ddp_sparse",
        "fsdp2",
        "fsdp2_accumulation",
        "fsdp2_offload",
        "fsdp2_quiet",
        "hsdp",
        "tp",
        "fsdp2_tp",
        "pp_gpipe",
        "pp_1f1b",
        "pp_warm",
        "experts",
        "experts_starved",
    }
)
"""Parallelisms of which every cell is exact; one that is not would make the sample fail. Extend it here."""

STEERED = frozenset(name for name, precision in PRECISIONS.items() if not precision.scaled)
"""Precisions whose every cell is exact. Those with a loss scaler are missing as long as scalers are only observed."""


def known(cell: Cell) -> bool:
    """Whether the cell is expected to be exact."""
    return cell.parallelism in EXACT and cell.precision in STEERED


def sample() -> list[Cell]:
    """Few cells that together have every parallelism and every value of every other column."""
    # Where several would do: gradients, which are hardest to place, and the highest rank; a wrong guard says rank 0.
    left = sorted(filter(known, cells()), key=lambda cell: (cell.stage.label != "grad", -(cell.rank or 0)))
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
    found = [
        cell
        for cell in cells()
        if cell.parallelism == parallelism and cell.rank and cell.stage.label in order and cell.precision in STEERED
    ]
    return min(found, key=lambda cell: (order.index(cell.stage.label), cell.world))
