"""Loss scalers: the same skip and the same scale on every rank; back-off for an overflow, none for bad data."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import scaling
from played import Play
from scaling import Loop

from firstbad.schema import RunStart, Step, Verdict

KINDS = list(itertools.product([False, True], [False, True], [False, True], [(1,), (0, 1)]))


@pytest.mark.parametrize(("sharded", "fused", "unscale", "ranks"), KINDS)
def test_an_overflow_is_left_out_and_the_scale_backs_off_alike_on_every_rank(
    play: Play, sharded: bool, fused: bool, unscale: bool, ranks: tuple[int, ...]
) -> None:
    """Both scalers, fused or not, unscaled by the script or not, on one rank or all: alone they diverge or crash."""
    loop = Loop(sharded=sharded, fused=fused, unscale=unscale, overflows=(2,), ranks=ranks)
    played = play(2, loop, scaling.train)

    assert played.one("error") is None
    params, scale, growth = played.one("params"), played.one("scale"), played.one("growth")
    assert params[2] == params[1]
    assert len({str(bits) for bits in params}) == 4, "every other step was applied"
    assert scale == [1024.0, 1024.0, 512.0, 512.0, 512.0]
    assert growth == [1, 2, 0, 1, 2]
    assert played.one("finite")
    verdicts = {(v.step, v.kind.value, v.action.value, v.offender_rank) for v in played.of(Verdict)}
    assert verdicts == {(2, "scale_probe", "skip", 1 if ranks == (1,) else None)}
    rows = [(row.step, row.skipped_step, row.loss_scale, row.loss_scale_after) for row in played.of(Step)]
    assert rows == 2 * [
        (0, False, 1024.0, None),
        (1, False, 1024.0, None),
        (2, True, 1024.0, 512.0),
        (3, False, 512.0, None),
        (4, False, 512.0, None),
    ]


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_bad_data_freezes_the_scale_and_its_growth(play: Play, fused: bool, unscale: bool) -> None:
    """A lower scale would cure nothing."""
    played = play(2, Loop(fused=fused, unscale=unscale, bad_losses=(2,), ranks=(1,)), scaling.train)

    assert played.one("scale") == [1024.0, 1024.0, 1024.0, 2048.0, 2048.0]
    assert played.one("growth") == [1, 2, 2, 0, 1]
    params = played.one("params")
    assert params[2] == params[1]
    assert {(v.step, v.kind.value, v.offender_rank) for v in played.of(Verdict)} == {(2, "fault", 1)}


@pytest.mark.parametrize(
    "loop",
    [
        Loop(),
        Loop(fused=True),
        Loop(unscale=True, clip=True),
        Loop(sharded=True),
        Loop(half=True, fused=True),
        Loop(two=True),
    ],
)
def test_a_clean_run_is_bit_equal_to_the_same_without_a_guard(play: Play, loop: Loop) -> None:
    """Weights, optimizer state, scale and growth."""
    played, bare = play(2, loop, scaling.train), play(2, replace(loop, guard=False), scaling.train)

    for name in ("params", "state", "scale", "growth", "norms"):
        assert played.one(name) == bare.one(name)
    assert not played.of(Verdict)
    assert all(start.steered for start in played.of(RunStart))


def test_float16_parameters_with_a_fused_optimizer_are_steered_though_unscale_refuses_them(play: Play) -> None:
    """The skip needs no division of gradients."""
    played = play(2, Loop(half=True, fused=True, overflows=(1,), ranks=(1,)), scaling.train)

    assert played.one("error") is None
    assert played.one("params")[0] == played.one("params")[1]
    assert played.one("scale")[1] == 512.0


def test_two_optimizers_of_one_scaler_are_left_out_together(play: Play) -> None:
    """The first may not step when the second one's gradients overflow on one rank."""
    played = play(2, Loop(two=True, overflows=(1,), ranks=(1,)), scaling.train)

    params = played.one("params")
    assert params[1] == params[0]
    assert played.one("scale") == [1024.0, 512.0, 512.0, 512.0, 1024.0]


def test_the_scale_is_held_at_its_floor_where_overflows_are_faults_that_end_the_run(play: Play) -> None:
    """Torch would let it underflow to 0 and write NaN; above the floor probes cost no budget."""
    loop = Loop(overflows=tuple(range(20)), steps=20, init_scale=16.0, settings={"max_consecutive_skips": 3})
    played = play(2, loop, scaling.train)

    assert played.one("scale") == [8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    assert played.one("error")[0] == "RunStopped"
    verdicts = sorted({(v.step, v.kind.value, v.action.value, v.escalates) for v in played.of(Verdict)})
    opening = played.of(Verdict)[0].incident_id
    assert [verdict[1:3] for verdict in verdicts] == 4 * [("scale_probe", "skip")] + 3 * [("fault", "skip")] + [
        ("fault", "stop")
    ]
    assert [verdict[3] for verdict in verdicts] == [None] * 4 + [opening] + [None] * 3
    assert played.one("finite")


def test_observe_leaves_every_decision_to_the_scaler(play: Play) -> None:
    """Also where that lets ranks diverge: nothing is touched, it is only recorded."""
    loop = Loop(overflows=(2,), ranks=(1,), settings={"policy": "observe"})
    played, bare = play(2, loop, scaling.train), play(2, replace(loop, guard=False), scaling.train)

    assert [rank["params"] for rank in played.ranks] == [rank["params"] for rank in bare.ranks]
    assert [rank["scale"] for rank in played.ranks] == [rank["scale"] for rank in bare.ranks]
    assert {v.action.value for v in played.of(Verdict)} == {"apply"}
    assert [row.skipped_step for row in played.of(Step) if row.step == 2] == [False, True]


def test_a_norm_of_gradients_that_are_still_scaled_is_never_recorded_as_the_norm(play: Play) -> None:
    """A clip before unscale_ clips to the wrong length; with unscale_ first the norm is the script's own."""
    wrong, right = play(1, Loop(clip_scaled=True), scaling.train), play(1, Loop(unscale=True, clip=True), scaling.train)

    assert {row.total_grad_norm for row in wrong.of(Step)} == {None}
    assert [row.total_grad_norm for row in right.of(Step)] == right.ranks[0]["norms"]
    plain = play(1, Loop(), scaling.train)
    unscaled = [row.owned_grad_sq**0.5 for row in plain.of(Step)]
    assert unscaled[0] == pytest.approx(right.ranks[0]["norms"][0], rel=1e-5)
