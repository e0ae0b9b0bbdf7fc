"""B15: NaN input, Inf gradient, consecutive skips, a single bad rank: exact offender, and a skip without a trace."""

from __future__ import annotations

import math

import pytest
from drills import Drill, Fault
from played import Play, dense

from firstbad.schema import Evidence, RunEnd, Step, Testimony, Verdict

KINDS = {
    "input": ("input", math.nan),
    "grad": ("grad", math.inf),
    "loss": ("loss", math.nan),
    "forward": ("forward", -math.inf),
}
CELLS = [
    *[(2, kind, rank, 1, 0, False) for kind in KINDS for rank in range(2)],
    *[(3, "grad", rank, 1, 0, False) for rank in range(3)],
    *[(4, "input", rank, 1, 0, False) for rank in range(4)],
    *[
        (2, kind, 1, 3, micro, quiet)
        for kind in ("grad", "loss", "input")
        for micro in range(3)
        for quiet in (True, False)
    ],
    *[(4, "grad", 3, 2, micro, True) for micro in range(2)],
]


@pytest.mark.parametrize(("world", "kind", "rank", "micro_steps", "micro", "no_sync"), CELLS)
def test_the_true_first_offender_is_named_and_the_skip_leaves_no_trace(
    play: Play, world: int, kind: str, rank: int, micro_steps: int, micro: int, no_sync: bool
) -> None:
    """Rank, micro step and stage are the injector's; parameters and optimizer state are those of a run without it."""
    stage, value = KINDS[kind]
    drill = Drill(faults=(Fault(kind, 2, micro, rank, value),), micro_steps=micro_steps, no_sync=no_sync)
    played = play(world, drill)
    reference = play(world, Drill(guard=False, leave_out=(2,), micro_steps=micro_steps, no_sync=no_sync))

    verdicts = played.of(Verdict)
    assert {(v.step, v.micro_step, v.offender_rank, v.first_bad_stage, v.action.value) for v in verdicts} == {
        (2, micro, rank, stage, "skip")
    }
    assert {v.rank for v in verdicts} == {(rank + i) % world for i in range(min(3, world))}
    (testimony,) = played.of(Testimony)
    assert (testimony.rank, testimony.sample_ids, testimony.shard_id) == (
        rank,
        (f"s2.{micro}.{rank}",),
        (f"shard{rank}",),
    )
    assert testimony.event_id == verdicts[0].event_id
    assert played.one("final_params") == reference.one("final_params")
    assert played.one("final_state") == reference.one("final_state")
    assert dense(played.records)


@pytest.mark.parametrize("micro", range(3))
def test_a_bad_value_in_one_weights_own_gradient_is_blamed_on_it_and_its_micro_step_is_not_guessed(
    play: Play, micro: int
) -> None:
    """Under no_sync nobody sees it but the last reduction: module and parameter exact, micro step null."""
    drill = Drill(faults=(Fault("weight_grad", 2, micro, 1),), micro_steps=3, no_sync=True)
    played = play(2, drill)

    (testimony,) = played.of(Testimony)
    assert {(v.micro_step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(None, 1, "grad")}
    assert (testimony.parameter, testimony.module) == ("blocks.2.linear.weight", "blocks.2.linear")
    assert testimony.sample_ids == tuple(f"s2.{m}.1" for m in range(3))


@pytest.mark.parametrize("bucket_view", [False, True])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_evidence_is_taken_before_the_clip_and_brackets_the_layer(
    play: Play, clip: float | None, bucket_view: bool
) -> None:
    """Inf enters behind block 1, so block 2 is finite; a clip with a NaN norm would have made everything NaN."""
    drill = Drill(faults=(Fault("grad", 2, 0, 1, math.inf),), clip=clip, bucket_view=bucket_view)
    played = play(2, drill)

    rows = {row.name: row for row in played.of(Evidence) if row.kind.value == "grad"}
    (testimony,) = played.of(Testimony)
    assert testimony.parameter == "blocks.1.linear.weight"
    assert rows["blocks.1.linear.weight"].is_bad
    assert not rows["blocks.2.norm.bias"].is_bad
    assert rows["blocks.2.norm.bias"].absmax_finite > 0
    assert played.one("finite")


@pytest.mark.parametrize("wrap", ["warm", "outer", "compiled"])
def test_the_origin_is_found_however_the_model_meets_ddp(play: Play, wrap: str) -> None:
    """Run before it was wrapped, wrapped once more, compiled: reductions are still seen before they spread."""
    played = play(2, Drill(faults=(Fault("weight_grad", 2, 0, 1),), wrap=wrap))

    assert {(v.step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(2, 1, "grad")}
    prefix = "0." if wrap == "outer" else ""
    assert {t.parameter for t in played.of(Testimony)} == {f"{prefix}blocks.2.linear.weight"}


def test_a_peers_bad_gradient_does_not_make_inputs_guilty_that_hold_nan_by_design(play: Play) -> None:
    """Rank 0 masks NaN in its inputs in every step; the fault is rank 1's gradient."""
    played = play(2, Drill(faults=(Fault("grad", 2, 0, 1),), nan_inputs_on=0))

    assert {(v.step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(2, 1, "grad")}


def test_evidence_of_an_accumulation_is_of_the_first_bad_micro_step_and_names_each_tensor_once(play: Play) -> None:
    """Later micro steps only repeat what the first left in the accumulated gradients."""
    rows = play(2, Drill(faults=(Fault("loss", 1, 0, 1),), micro_steps=3, no_sync=True)).of(Evidence)

    assert {row.micro_step for row in rows} == {0}
    assert len({(row.kind, row.name) for row in rows}) == len(rows)
    assert {row.kind.value for row in rows} >= {"loss", "grad"}


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"micro_steps": 2, "no_sync": True},
        {"clip": 0.5, "optimizer": "sgd_momentum"},
        {"bucket_view": True, "optimizer": "adamw_fused", "scheduler": True},
    ],
    ids=["plain", "accumulation", "clip", "fused"],
)
def test_a_clean_run_with_the_agent_is_bit_identical_to_one_without(play: Play, world: int, change: dict) -> None:
    """Losses, parameters after every step, optimizer state."""
    watched, bare = play(world, Drill(**change)), play(world, Drill(guard=False, **change))

    for mine, theirs in zip(watched.ranks, bare.ranks, strict=True):
        assert {k: mine[k] for k in ("losses", "params", "state")} == {
            k: theirs[k] for k in ("losses", "params", "state")
        }
    assert not watched.of(Verdict)
    assert {end.outcome.value for end in watched.of(RunEnd)} == {"finished"}


@pytest.mark.parametrize(
    "optimizer", ["adam", "adamw", "adamw_fused", "sgd", "sgd_momentum", "rmsprop", "nadam", "adagrad", "adafactor"]
)
@pytest.mark.parametrize("step", [0, 2])
def test_a_skip_is_clean_for_every_optimizer_also_at_the_first_step(play: Play, optimizer: str, step: int) -> None:
    """Single process: the state is that of a run that left the step out."""
    played = play(1, Drill(faults=(Fault("grad", step),), optimizer=optimizer))
    reference = play(1, Drill(guard=False, leave_out=(step,), optimizer=optimizer))

    assert played.one("final_params") == reference.one("final_params")
    assert played.one("final_state") == reference.one("final_state")


def test_bf16_parameters_are_skipped_and_located_too(play: Play) -> None:
    """BF16 training without a scaler."""
    import torch

    played = play(2, Drill(faults=(Fault("grad", 1, 0, 1, math.inf),), dtype=torch.bfloat16))
    reference = play(2, Drill(guard=False, leave_out=(1,), dtype=torch.bfloat16))

    assert {(v.step, v.offender_rank) for v in played.of(Verdict)} == {(1, 1)}
    assert played.one("final_params") == reference.one("final_params")


def test_consecutive_skips_end_in_a_stop_with_the_same_words_on_every_rank(play: Play) -> None:
    """Three may be skipped, the fourth stops; all weights stay those of the last good step."""
    faults = tuple(Fault("loss", step, 0, step % 2) for step in range(2, 8))
    played = play(2, Drill(faults=faults, steps=8, settings={"max_consecutive_skips": 3}))
    reference = play(2, Drill(guard=False, steps=2))

    kind, text = played.one("error")
    actions = [v.action.value for v in played.of(Verdict) if v.rank == 0]
    assert kind == "RunStopped"
    assert "step 5" in text
    assert "last good step 1" in text
    assert actions == ["skip", "skip", "skip", "stop"]
    assert played.one("final_params") == reference.one("final_params")
    assert {(end.outcome.value, end.steps, end.applied_steps) for end in played.of(RunEnd)} == {("stopped", 6, 2)}
    assert len({v.incident_id for v in played.of(Verdict)}) == 1


def test_policy_stop_ends_at_the_first_bad_step_on_every_rank(play: Play) -> None:
    """Before its update; the rank that saw nothing stops with the same error."""
    played = play(3, Drill(faults=(Fault("grad", 1, 0, 2),), settings={"policy": "stop"}))

    assert played.one("error")[0] == "RunStopped"
    assert {(end.outcome.value, end.step, end.steps) for end in played.of(RunEnd)} == {("stopped", 1, 2)}
    assert {(v.step, v.action.value, v.advised_action.value) for v in played.of(Verdict)} == {(1, "stop", "skip")}
    assert played.one("finite")


def test_policy_observe_never_touches_an_update_and_says_what_skip_would_have_done(play: Play) -> None:
    """The run is destroyed exactly as it is without the agent."""
    fault = (Fault("grad", 1, 0, 1),)
    played = play(2, Drill(faults=fault, settings={"policy": "observe"}))
    bare = play(2, Drill(faults=fault, guard=False))

    first, *later = sorted((v for v in played.of(Verdict) if v.rank == 0), key=lambda v: v.step)
    assert (first.step, first.offender_rank, first.action.value, first.advised_action.value) == (1, 1, "apply", "skip")
    assert [(v.step, v.first_bad_stage, v.all_ranks, v.offender_rank) for v in later] == [
        (2, "param", True, None),
        (3, "param", True, None),
    ]
    assert played.one("final_params") == bare.one("final_params")
    assert not played.one("finite")


def test_an_update_that_ruins_the_weights_is_found_when_the_next_forward_is_bad(play: Play) -> None:
    """Finite gradients, infinite learning rate on one rank: the next step is bad, its origin the step before."""
    played = play(2, Drill(faults=(Fault("update", 2, 0, 1),)))

    found = {(v.step, v.origin_step, v.last_good_step, v.first_bad_stage, v.offender_rank) for v in played.of(Verdict)}
    assert found == {(3, 2, 1, "update", 1)}


def test_weights_that_are_bad_before_the_first_forward_are_stage_param(play: Play) -> None:
    """As after loading a bad checkpoint; nobody is guilty, since every rank holds them."""
    played = play(2, Drill(faults=(Fault("param", 0, 0, None),), steps=1))

    assert {(v.step, v.first_bad_stage, v.all_ranks, v.offender_rank) for v in played.of(Verdict)} == {
        (0, "param", True, None)
    }
    assert {t.parameter for t in played.of(Testimony)} == {"blocks.1.linear.weight"}


def test_counters_are_right_for_every_step_skipped_or_not(play: Play) -> None:
    """C4: attempted, applied and consumed are three columns; a skipped batch is consumed."""
    played = play(2, Drill(faults=(Fault("loss", 1, 0, 0), Fault("grad", 3, 1, 1)), steps=5, micro_steps=2))

    for rank in range(2):
        rows = [row for row in played.of(Step) if row.rank == rank]
        assert [row.step for row in rows] == [0, 1, 2, 3, 4]
        assert [row.applied_step for row in rows] == [1, 1, 2, 2, 3]
        assert [row.skip_count for row in rows] == [0, 1, 1, 2, 2]
        assert [row.skipped_step for row in rows] == [False, True, False, True, False]
        assert [row.consumed_samples for row in rows] == [2, 4, 6, 8, 10]
        assert [row.trainer_step for row in rows] == [100, 101, 102, 103, 104]
        assert [row.micro_steps for row in rows] == [2] * 5
        assert [row.valid_tokens for row in rows] == [8] * 5
        assert [row.effective_global_batch for row in rows] == [4] * 5
        assert [row.first_bad_stage for row in rows] == [None, "loss", None, "grad", None]
    local = [(row.rank, row.step, row.local_bad_stage) for row in played.of(Step) if row.local_bad_stage]
    assert (0, 1, "loss") in local
    assert (1, 3, "grad") in local
    assert (1, 1, "grad_reduced") in local
