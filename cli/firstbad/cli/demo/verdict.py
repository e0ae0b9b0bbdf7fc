"""What must hold at the end of the demo besides the ledger's answer, by the training script's own log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from firstbad.cli.demo.order import Order
from firstbad.cli.demo.ranklogs import RankLogs
from firstbad.cli.demo.recipe import Recipe

_MEAN_OVER = 20
"""Steps over which a loss is averaged; single batches differ too much."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, and what does not when it fails."""

    ok: bool
    text: str
    differences: tuple[str, ...] = ()


def judge(
    bare: RankLogs, guarded: RankLogs, order: Order, recipe: Recipe, step_rows: int, unlike: Sequence[str]
) -> list[Check]:
    """All of it, in the order in which it is shown. `unlike` are differences of the logs to the data order."""
    first = order.bad_steps[0]
    rows = recipe.world * recipe.steps
    before, after = loss_before_and_after(guarded, first)
    same = bitwise_equal(bare, guarded, first)
    ends = guarded.ends.values()
    nan = sum(end["nan_tensors"] for end in ends)
    equal = len({end["parameters"] for end in ends}) == 1 and len(ends) == recipe.world
    skipped = guarded.left_out()
    return [
        Check(step_rows == rows, f"it holds {step_rows} of {rows} rows: every rank, every step"),
        Check(
            not unlike, "both trainings met exactly the micro-batches without a label that were laid out", (*unlike,)
        ),
        Check(
            bare.ruined_from == first,
            f"bare: every parameter tensor holds NaN from step {bare.ruined_from}"
            if bare.ruined_from is not None
            else "bare: the parameters were expected to be NaN, and are not",
        ),
        Check(
            same, f"until then both are the same to the last bit: the losses of every rank in steps 0 to {first - 1}"
        ),
        Check(
            skipped == order.bad_steps and not nan and equal,
            f"under firstbad: {len(skipped)} updates skipped, no NaN in any parameter, all ranks hold the same ones",
        ),
        Check(after < before, f"and its loss keeps falling: {before:.2f} before step {first}, {after:.2f} at the end"),
    ]


def loss_before_and_after(logs: RankLogs, step: int) -> tuple[float, float]:
    """The mean loss of the finite steps just before `step`, and of the last ones; NaN when there are none."""
    curve = logs.curve()
    return _mean(curve[max(0, step - _MEAN_OVER) : step]), _mean(curve[step + 1 :][-_MEAN_OVER:])


def bitwise_equal(one: RankLogs, other: RankLogs, until: int) -> bool:
    """Whether every rank logged the same losses before step `until`."""
    return all(one.losses[step] == other.losses[step] and one.losses[step] for step in range(until))


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
