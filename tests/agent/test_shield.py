"""A skipped step leaves buffers and, by setting, the learning-rate schedule as they were."""

from __future__ import annotations

import buffers
import pytest
from drills import Drill, Fault
from played import Play

from firstbad.schema import RunEnd, Verdict


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("micro_step", [0, 1])
def test_buffers_that_the_bad_forward_wrote_are_put_back_on_every_rank(play: Play, rank: int, micro_step: int) -> None:
    """Also with offender rank 0, whose buffers DDP would spread to all; also those that a forward replaces."""
    drill = Drill(faults=(Fault("input", 2, micro_step, rank),), micro_steps=2, steps=5)
    played = play(2, drill, buffers.normalises)
    reference = play(2, Drill(guard=False, micro_steps=2, steps=5, leave_out=(2,)), buffers.normalises)

    assert [r["buffers"] for r in played.ranks] == [r["buffers"] for r in reference.ranks]
    assert played.one("params") == reference.one("params")
    assert {(v.step, v.offender_rank) for v in played.of(Verdict)} == {(2, rank)}
    assert {end.observers_off for end in played.of(RunEnd)} == {()}


def test_a_table_that_no_forward_writes_is_not_copied_every_step(play: Play) -> None:
    """Only what was seen to change is kept; a clean run is bit-equal."""
    played, bare = play(1, Drill(), buffers.normalises), play(1, Drill(guard=False), buffers.normalises)

    assert played.one("copies_table") is False
    assert played.one("buffers") == bare.one("buffers")
    assert played.one("params") == bare.one("params")


@pytest.mark.parametrize("policy", ["advance", "hold"])
def test_schedulers_advance_or_are_held_over_a_skip_as_the_settings_say(play: Play, policy: str) -> None:
    """Held once, for the skipped step alone."""
    settings = {"lr_on_skip": policy}
    played = play(1, Drill(faults=(Fault("input", 2),), settings=settings), buffers.normalises)
    reference = play(1, Drill(guard=False, leave_out=(2,), settings=settings), buffers.normalises)

    assert played.one("rate") == reference.one("rate") == 0.1 * 0.5 ** (4 if policy == "advance" else 3)
    assert played.one("params") == reference.one("params")


def test_observe_puts_nothing_back(play: Play) -> None:
    """It never touches anything."""
    drill = Drill(faults=(Fault("input", 2),), settings={"policy": "observe"})
    played = play(1, drill, buffers.normalises)

    assert played.one("buffers")[2] != played.one("buffers")[1]
