"""Scripts as people write them: the guard changes nothing in a clean run, and decides rightly in a bad one."""

from __future__ import annotations

from typing import Any

import habits
import pytest
from drills import Drill, Fault
from played import Play

from firstbad.schema import RunEnd, Step, Testimony, Verdict

HABITS: dict[str, tuple[Any, int, Drill]] = {
    "sam": (habits.sharpness_aware, 1, Drill()),
    "sam in ddp": (habits.sharpness_aware, 2, Drill()),
    "sam without a base optimizer": (habits.sharpness_aware, 1, Drill(optimizer="self")),
    "accumulation into a closure": (habits.accumulates_into_a_closure, 1, Drill()),
    "own skip, never needed": (habits.skips_by_itself, 1, Drill()),
    "gradient surgery": (habits.combines_gradients, 1, Drill()),
    "a rank without data": (habits.has_no_data, 3, Drill()),
    "a model that comes late": (habits.second_model_comes_late, 2, Drill()),
    "compression": (habits.compresses, 2, Drill()),
    "activation checkpointing": (habits.checkpoints_activations, 1, Drill()),
    "reentrant checkpointing": (habits.checkpoints_activations, 1, Drill(bucket_view=True)),
}

# SAM without a base optimizer is told and unprotected in its first step, which shows what it is.
ROWS = {
    "a model that comes late": 6,
    "activation checkpointing": 3,
    "reentrant checkpointing": 3,
    "sam without a base optimizer": 3,
}


def bare(drill: Drill, *leave_out: int) -> Drill:
    """The same run without a guard, with some steps left out by hand."""
    return Drill(guard=False, optimizer=drill.optimizer, bucket_view=drill.bucket_view, leave_out=leave_out)


@pytest.mark.parametrize("name", HABITS)
def test_a_clean_run_is_bit_equal_to_the_same_without_a_guard(play: Play, name: str) -> None:
    """And nothing is called bad, no observer fails, every step has its row."""
    function, world, drill = HABITS[name]
    played, reference = play(world, drill, function), play(world, bare(drill), function)

    assert [rank["params"] for rank in played.ranks] == [rank["params"] for rank in reference.ranks]
    assert not played.of(Verdict)
    assert {end.observers_off for end in played.of(RunEnd)} == {()}
    for rank in range(world):
        steps = [row.step for row in played.of(Step) if row.rank == rank]
        assert steps == list(range(len(steps)))
        assert len(steps) == ROWS.get(name, 4)


@pytest.mark.parametrize("micro_step", [0, 1])
def test_sam_is_skipped_whole_whichever_of_its_two_backwards_is_bad(play: Play, micro_step: int) -> None:
    """The weights it had moved are back where they were, the base optimizer's momentum has not moved."""
    played = play(2, Drill(faults=(Fault("loss", 2, micro_step, 1),)), habits.sharpness_aware)
    reference = play(2, bare(Drill(), 2), habits.sharpness_aware)

    assert played.one("params") == reference.one("params")
    (verdict,) = {(v.step, v.offender_rank, v.first_bad_stage, v.micro_step) for v in played.of(Verdict)}
    assert verdict == (2, 1, "loss", micro_step)


def test_a_bad_micro_step_before_a_closure_and_one_inside_it_are_both_seen(play: Play) -> None:
    """As under Lightning's accumulation; the loop gets its loss also from the steps that are left out."""
    drill = Drill(faults=(Fault("loss", 1, 0), Fault("loss", 2, 1)))
    played = play(1, drill, habits.accumulates_into_a_closure)
    reference = play(1, bare(Drill(), 1, 2), habits.accumulates_into_a_closure)

    assert played.one("params") == reference.one("params")
    assert [(v.step, v.micro_step) for v in played.of(Verdict)] == [(1, 0), (2, 1)]
    assert len(played.one("returned")) == 4


@pytest.mark.parametrize("clears", ["by_optimizer", "by_model"])
def test_a_script_that_leaves_a_bad_step_out_itself_keeps_its_next_step(play: Play, clears: str) -> None:
    """What it threw away belongs to no step: the next one is good, and is neither skipped nor blamed."""
    drill = Drill(faults=(Fault("grad", 2),), steps=6, optimizer=clears)
    played = play(1, drill, habits.skips_by_itself)
    reference = play(1, Drill(faults=drill.faults, steps=6, optimizer=clears, guard=False), habits.skips_by_itself)

    assert played.one("params") == reference.one("params")
    assert played.one("skipped") == [2]
    assert not played.of(Verdict)
    assert [(row.step, row.micro_steps, row.skipped_step) for row in played.of(Step)] == [
        (step, 1, False) for step in range(5)
    ]


@pytest.mark.parametrize("task", [0, 1])
def test_gradient_surgery_with_a_bad_task_is_skipped_and_the_task_is_named(play: Play, task: int) -> None:
    """Gradients put aside and given back are the update's own, though zero_grad stood between."""
    played = play(1, Drill(faults=(Fault("grad", 2, task),)), habits.combines_gradients)
    reference = play(1, bare(Drill(), 2), habits.combines_gradients)

    assert played.one("params") == reference.one("params")
    assert [(v.step, v.action.value) for v in played.of(Verdict)] == [(2, "skip")]
    assert [row.micro_steps for row in played.of(Step)] == [2] * 4


def test_a_rank_without_data_takes_part_in_the_decision(play: Play) -> None:
    """It steps with no backward; its peers do not wait for it, and a bad peer's step is skipped there too."""
    played = play(3, Drill(faults=(Fault("grad", 2, 0, 1),)), habits.has_no_data)

    assert played.one("finite")
    played.one("params")
    assert {(v.step, v.offender_rank, v.action.value) for v in played.of(Verdict)} == {(2, 1, "skip")}
    idle = [(row.step, row.micro_steps, row.loss) for row in played.of(Step) if row.rank == 2]
    assert [(step, micro, loss is None) for step, micro, loss in idle] == [
        (0, 1, False),
        (1, 0, True),
        (2, 0, True),
        (3, 1, False),
    ]


def test_the_offender_is_found_also_in_a_model_that_begins_to_train_late(play: Play) -> None:
    """Its reductions are watched from its first forward on."""
    played = play(2, Drill(faults=(Fault("grad", 5, 0, 1),)), habits.second_model_comes_late)

    assert {(v.step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(5, 1, "grad")}
    assert [(t.rank, t.parameter) for t in played.of(Testimony)] == [(1, "outlet.weight")]


def test_ranks_whose_step_counts_differ_are_told_at_once(play: Play) -> None:
    """Decisions alone look alike, since every rank takes as many; said once, with both sides."""
    played = play(2, Drill(), habits.leaves_out_before_the_backward)

    said = [line for rank in played.ranks for line in rank if "trainer's own count" in line]
    assert len(said) == 1
    assert "rank 0 decides step 2" in said[0]
    assert "rank 1 decides step 3" in said[0]
    assert {row.step: row.trainer_step for row in played.of(Step) if row.rank == 1} == {0: 0, 1: 1, 2: 3, 3: 4, 4: 5}


def test_a_compression_hook_does_not_keep_the_bad_gradient_of_a_skipped_step(play: Play) -> None:
    """PowerSGD's error feedback: the steps after the skip are good, on equal weights."""
    played = play(2, Drill(faults=(Fault("loss", 4, 0, 1),), steps=8), habits.compresses)

    assert {(v.step, v.offender_rank) for v in played.of(Verdict)} == {(4, 1)}
    assert played.one("finite")
    assert played.one("compressed") > 0
    played.one("params")


def test_a_model_whose_training_is_over_is_not_kept_alive(play: Play) -> None:
    """Else a sweep would fill the memory."""
    assert play(2, Drill(), habits.trains_one_after_another).one("gone") == [True] * 3


@pytest.mark.parametrize("module", ["inlet", "middle", "head"])
def test_the_module_is_named_though_a_later_reduction_carries_it(play: Play, module: str) -> None:
    """FSDP2's root group holds the head, whose gradient is first in backward, and reduces last."""
    played = play(2, Drill(optimizer=module), habits.shards_all_but_the_head)

    assert {(v.step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(2, 1, "grad")}
    assert [(t.rank, t.module) for t in played.of(Testimony)] == [(1, module)]


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_ranks_with_less_data_take_part_in_the_decisions_of_those_with_more(play: Play, micro_steps: int) -> None:
    """DDP.join: a clean run is bit-equal; a bad step is skipped on all ranks, also after some have run out of data."""
    clean = play(3, Drill(micro_steps=micro_steps), habits.joins)
    reference = play(3, Drill(guard=False, micro_steps=micro_steps), habits.joins)

    assert clean.one("params") == reference.one("params")
    assert not clean.of(Verdict)
    for rank in range(3):
        rows = [(row.step, row.micro_steps) for row in clean.of(Step) if row.rank == rank]
        assert rows == [(step, micro_steps if step < 3 + 2 * rank else 0) for step in range(7)]

    played = play(3, Drill(faults=(Fault("loss", 4, 0, 2),), micro_steps=micro_steps), habits.joins)
    assert played.one("finite")
    played.one("params")
    assert {(v.step, v.offender_rank, v.micro_step, v.action.value) for v in played.of(Verdict)} == {(4, 2, 0, "skip")}


@pytest.mark.parametrize("reentrant", [False, True])
def test_blocks_that_a_backward_runs_again_are_no_models_of_their_own(play: Play, reentrant: bool) -> None:
    """Names stay those of the whole model."""
    played = play(1, Drill(faults=(Fault("grad", 2),), bucket_view=reentrant), habits.checkpoints_activations)

    assert played.ranks[0]["roots"] == 1
    assert [t.parameter for t in played.of(Testimony)] == ["blocks.1.outlet.weight"]


@pytest.mark.filterwarnings("ignore")
def test_a_watched_model_can_be_scripted_and_traced_between_steps(play: Play) -> None:
    """And is watched on afterwards."""
    played, reference = play(1, Drill(), habits.exports), play(1, bare(Drill()), habits.exports)

    assert played.one("outputs") == [True] * 6
    assert played.one("params") == reference.one("params")
    assert [row.step for row in played.of(Step)] == [0, 1, 2]


def test_the_guard_costs_a_compiled_model_no_further_compilation(play: Play) -> None:
    """As many graphs as without it."""
    assert play(1, Drill(), habits.compiles).one("graphs") == play(1, bare(Drill()), habits.compiles).one("graphs")
