"""A torch without hooks on process groups (before 2.15): DDP's buckets and Python's collectives are looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import hookless
import pytest
import rankworld
from drills import Drill, Fault
from hookless import Hookless, Loop
from played import Play
from tests.drills.cell import Cell
from tests.drills.matrix import cells
from tests.drills.player import Player

from firstbad.schema import RunEnd, Testimony, Verdict

PARALLELISMS = sorted({cell.parallelism for cell in cells() if cell.world > 1})
BITS = [
    Loop(),
    Loop(small_buckets=True),
    Loop(keep=True, small_buckets=True),
    Loop(view=True),
    Loop(view=True, keep=True, small_buckets=True),
    Loop(view=True, quiet=True, small_buckets=True),
    Loop(sparse=True),
    Loop(quiet=True),
    Loop(static=True),
    Loop(unused=True, view=True, keep=True),
    Loop(uneven="initial"),
    Loop(uneven="left"),
    Loop(detach=True, view=True, keep=True),
]


def hardest(parallelism: str) -> Cell:
    """A cell whose bad gradient or activation comes from a rank above 0 and reaches others by a collective."""
    stages = ("grad", "forward", "loss", "input")
    found = [c for c in cells() if c.parallelism == parallelism and c.rank and c.stage.label in stages]
    return min(found, key=lambda cell: (stages.index(cell.stage.label), cell.world, cell.precision != "fp32"))


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_the_origin_is_exact_under_every_parallelism(parallelism: str) -> None:
    """As with hooks on process groups: rank, micro step, stage and module."""
    found = Player().play(hardest(parallelism), Hookless(), bits=False)  # type: ignore[arg-type]

    assert [str(finding) for finding in found] == []


@pytest.mark.parametrize("run", BITS, ids=str)
def test_the_reduction_that_stands_in_for_torchs_own_rounds_as_it_does(run: Loop, tmp_path: Path) -> None:
    """Three ranks, where a division and a multiplication by the inverse differ: every gradient, bit for bit."""
    watched = rankworld.run(3, hookless.loop, run, str(tmp_path))
    bare = rankworld.run(3, hookless.loop, replace(run, guard=""), "")

    assert watched == bare


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("hook", ["own", "ALLREDUCE", "FP16_COMPRESS"])
def test_a_hook_of_the_script_reduces_as_it_would_without_a_guard(
    play: Play, tmp_path: Path, hook: str, late: bool
) -> None:
    """Early or after the first step, in Python or C++; DDP tells the script the same, and refuses a second one."""
    run = Loop(hook=hook, late=late)
    watched = rankworld.run(3, hookless.loop, run, str(tmp_path / "good"))
    bare = rankworld.run(3, hookless.loop, replace(run, guard=""), "")
    played = play(3, replace(run, bad_step=2), hookless.loop)

    assert watched == bare
    assert watched[0]["told"]["again"] == "refused"
    assert {(v.step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(2, 1, "grad")}
    assert {t.parameter for t in played.of(Testimony)} == {"second.weight"}


@pytest.mark.parametrize(
    ("hook", "found"), [("own", (1, "grad")), ("ALLREDUCE", (None, "grad_reduced"))], ids=["python", "c++"]
)
def test_a_hook_that_was_there_before_the_guard_stays_and_nobody_is_guessed_behind_one_in_c(
    play: Play, tmp_path: Path, hook: str, found: tuple[int | None, str]
) -> None:
    """What a hook in Python exchanges is seen all the same; behind one in C++ every rank has a bad gradient at once."""
    run = Loop(hook=hook, guard="last")
    played = play(2, replace(run, bad_step=2), hookless.loop)
    watched = rankworld.run(2, hookless.loop, run, str(tmp_path / "good"))

    assert {(v.step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(2, *found)}
    assert {end.observers_off for end in played.of(RunEnd)} == {()}
    assert watched == rankworld.run(2, hookless.loop, replace(run, guard=""), "")


@pytest.mark.parametrize("micro", range(3))
def test_micro_step_and_module_are_those_of_the_bad_gradient(play: Play, micro: int) -> None:
    """Accumulation without synchronisation; a bucket names its parameters, whatever its place."""
    drill = Drill(faults=(Fault("grad", 2, micro, 1),), micro_steps=3, no_sync=True)
    played = play(2, drill, hookless.train)

    assert {(v.micro_step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(micro, 1, "grad")}
    assert {t.parameter for t in played.of(Testimony)} == {"blocks.1.linear.weight"}


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("wrap", ["", "warm", "outer", "compiled"])
def test_the_first_buckets_name_the_origin_as_later_ones_do(play: Play, wrap: str, step: int) -> None:
    """In the first step one bucket holds all, in order of registration."""
    played = play(2, Drill(faults=(Fault("weight_grad", step, 0, 1),), wrap=wrap), hookless.train)

    assert {(v.step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(step, 1, "grad")}
    assert {t.parameter.removeprefix("0.") for t in played.of(Testimony)} == {"blocks.2.linear.weight"}


def test_gradients_that_a_script_reduces_by_hand_are_looked_at_before(play: Play) -> None:
    """dist.all_reduce between backward and step."""
    played = play(3, Drill(faults=(Fault("grad", 2, 0, 1),)), hookless.has_no_data)

    assert {(v.step, v.offender_rank) for v in played.of(Verdict)} == {(2, 1)}
