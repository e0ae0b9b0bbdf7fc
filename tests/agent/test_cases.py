"""Faults reported in public trackers; each test cites the id of shared case lists in its name."""

from __future__ import annotations

import math
import random

import pytest
import torch
from drills import Drill, Fault
from played import Play
from scripts import leave_early, lopsided, masked

from firstbad.schema import Evidence, Step, Testimony, Verdict


@pytest.mark.parametrize("world", [2, 4])
def test_a1_an_anomaly_on_the_last_rank_alone_is_skipped_everywhere_and_named(play: Play, world: int) -> None:
    """A verdict taken on rank 0 and broadcast would miss it."""
    played = play(world, Drill(faults=(Fault("loss", 1, 0, world - 1),)))

    assert {v.offender_rank for v in played.of(Verdict)} == {world - 1}
    assert {row.skipped_step for row in played.of(Step) if row.step == 1} == {True}
    assert len([row for row in played.of(Step) if row.step == 1]) == world


@pytest.mark.parametrize("seed", range(6))
def test_a2_random_bad_ranks_leave_all_ranks_identical(play: Play, seed: int) -> None:
    """Parameters after every step, state, applied count, learning rate; and the elected one is the minimum."""
    draw = random.Random(seed)
    world, steps, micro_steps = draw.choice([2, 3]), 6, 2
    faults = [
        Fault(draw.choice(["loss", "input"]), step, draw.randrange(micro_steps), rank)
        for step in range(steps)
        for rank in range(world)
        if draw.random() < 0.25
    ]
    drill = Drill(tuple(faults), steps=steps, micro_steps=micro_steps, no_sync=True, scheduler=True)
    played = play(world, drill)

    played.one("params")
    played.one("final_state")
    rows: dict[int, set] = {}
    for row in played.of(Step):
        rows.setdefault(row.step, set()).add(
            (row.applied_step, row.skipped_step, row.learning_rate, row.first_bad_stage)
        )
    assert all(len(values) == 1 for values in rows.values())
    order = {"input": 0, "loss": 1}
    for step in range(steps):
        hits = sorted((f.micro_step, order[f.kind], f.rank) for f in faults if f.step == step)
        elected = {(v.micro_step, v.elected_rank) for v in played.of(Verdict) if v.step == step}
        assert elected == ({(hits[0][0], hits[0][2])} if hits else set())


def test_a3_ranks_in_different_steps_stop_with_both_sides_named(play: Play) -> None:
    """The step count of the decision, not a hang: rank 1 repeats a step that rank 0 has taken."""
    played = play(2, Drill(), lopsided)

    assert [r[0] for r in played.ranks] == ["StepMismatch", "StepMismatch"]
    assert all("rank 1 decides step 2, rank 0 decides step 3;" in r[1] for r in played.ranks)


def test_a_peer_that_dies_in_the_consensus_gives_an_error_that_says_what_to_look_at(play: Play) -> None:
    """Every survivor raises ConsensusFailed; none decides alone."""
    from rankworld import RankFailed

    with pytest.raises(RankFailed, match="exit code -9") as caught:
        play(2, Drill(), leave_early)

    assert "rank 0:" not in str(caught.value)


def test_a5_skipped_comes_from_the_verdict_and_the_scheduler_is_recorded(play: Play) -> None:
    """Fused AdamW, skipped at step 1: its row says skipped; the next row says that the schedule went on."""
    drill = Drill(faults=(Fault("grad", 1, 0, 0),), optimizer="adamw_fused", scheduler=True)
    rows = [row for row in play(2, drill).of(Step) if row.rank == 0]

    assert [row.skipped_step for row in rows] == [False, True, False, False]
    assert [row.lr_advanced for row in rows] == [None, True, True, True]
    assert rows[2].learning_rate < rows[1].learning_rate


@pytest.mark.parametrize(
    ("value", "column"), [(math.nan, "nan_count"), (math.inf, "posinf_count"), (-math.inf, "neginf_count")]
)
def test_b5_nan_and_both_infinities_are_counted_apart_and_bf16_has_no_loss_scale(
    play: Play, value: float, column: str
) -> None:
    """One bad input element; the scale is null without a scaler, not 1."""
    played = play(1, Drill(faults=(Fault("input", 1, value=value),), dtype=torch.bfloat16))

    (row,) = [row for row in played.of(Evidence) if row.kind.value == "input"]
    counts = {name: getattr(row, name) for name in ("nan_count", "posinf_count", "neginf_count")}
    assert counts == {name: int(name == column) for name in counts}
    assert {row.loss_scale for row in played.of(Step)} == {None}
    assert played.of(Testimony)[0].loss_scale_before is None


def test_b6_one_infinite_element_in_a_reduced_bf16_gradient_changes_no_bit(play: Play) -> None:
    """It appears after the reduction, on one rank only; parameters and both moments stay as they were."""
    fault = (Fault("reduced", 2, 0, 1, math.inf),)
    played = play(2, Drill(faults=fault, dtype=torch.bfloat16, optimizer="adamw_fused"))
    reference = play(2, Drill(guard=False, leave_out=(2,), dtype=torch.bfloat16, optimizer="adamw_fused"))

    assert played.one("final_params") == reference.one("final_params")
    assert played.one("final_state") == reference.one("final_state")
    assert {(v.first_bad_stage, v.offender_rank) for v in played.of(Verdict)} == {("grad_reduced", 1)}


def test_d4_the_raw_loss_is_kept_in_its_row_and_null_is_not_used_for_bad(play: Play) -> None:
    """NaN stays NaN with its own finite flag; the healthy rank's loss stays a number."""
    rows = [row for row in play(2, Drill(faults=(Fault("loss", 1, 0, 1),))).of(Step) if row.step == 1]

    assert math.isnan(rows[1].loss)
    assert rows[1].loss_finite is False
    assert math.isfinite(rows[0].loss)
    assert rows[0].loss_finite is True


@pytest.mark.parametrize("form", ["ignore_index", "mask_sum"])
def test_g1_a_micro_batch_without_labels_is_skipped_and_its_samples_named(play: Play, form: str) -> None:
    """Both forms: with ignore_index only the loss is NaN, by hand the gradients are too and DDP spreads them."""
    played = play(2, Drill(optimizer=form), masked)
    reference = play(2, Drill(optimizer=form, guard=False, leave_out=(1,)), masked)
    bare = play(2, Drill(optimizer=form, guard=False), masked)

    (testimony,) = played.of(Testimony)
    assert {(v.step, v.micro_step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {
        (1, 0, 1, "loss")
    }
    assert (testimony.valid_tokens, testimony.sample_ids) == (0, ("1/1",))
    assert played.one("params") == reference.one("params")
    assert bare.one("finite") == (form == "ignore_index")
