"""What the guard does around a decision: the meeting of the ranks, faults of its own, scripts of every shape."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import ledger
import pytest
import rankworld
import scripts
from drills import Drill, Fault
from played import Play, dense

from firstbad.agent.recorder import Recorder
from firstbad.schema import Evidence, RunEnd, RunStart, Step, Testimony, Verdict


def test_ranks_with_different_settings_are_refused_on_every_rank_naming_the_odd_one(play: Play) -> None:
    """Before the first decision; the error tells what most have and who differs."""
    played = play(3, Drill(), scripts.disagree)

    assert {kind for kind, _ in played.ranks} == {"SettingsMismatch"}
    assert all("rank 1 has" in text and "observe" in text and "rank 0 has" not in text for _, text in played.ranks)


def test_a_bad_setting_on_one_rank_is_refused_on_every_rank_with_its_value(play: Play) -> None:
    """No rank is left waiting for the one that cannot start."""
    played = play(3, Drill(), scripts.refuse)

    assert {kind for kind, _ in played.ranks} == {"SettingsMismatch"}
    assert all("rank 2" in text and "sikp" in text for _, text in played.ranks)


def test_a_journal_folder_that_one_rank_cannot_make_is_refused_on_every_rank(play: Play) -> None:
    """Named with its path, before the first step."""
    played = play(2, Drill(), scripts.no_folder)

    assert {kind for kind, _ in played.ranks} == {"SettingsMismatch"}
    assert all("rank 1" in text and "below" in text for _, text in played.ranks)


@pytest.mark.parametrize(
    ("ending", "code", "outcome"),
    [("", 0, "finished"), ("raise ValueError('boom')", 1, "failed"), ("import sys; sys.exit(3)", 3, "finished")],
)
def test_a_guard_made_in_code_writes_its_run_end_when_the_interpreter_ends(
    tmp_path: Path, ending: str, code: int, outcome: str
) -> None:
    """Also when an exception ends it. An exit code of the script's own is not known to it: null."""
    script = (
        "import torch; from firstbad.agent import Guard; g = Guard(journal='j', run_id='r')\n"
        "m = torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "m(torch.ones(1, 2)).sum().backward(); o.step()\n" + ending
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    records = ledger.records(tmp_path / "j")

    assert done.returncode == code, done.stderr
    assert [record.record for record in records] == ["run_start", "step", "run_end"]
    assert records[-1].outcome.value == outcome
    assert records[-1].error_type == ("ValueError" if "boom" in ending else None)


@pytest.mark.parametrize("faulty", [False, True])
def test_an_observers_fault_switches_it_off_and_never_reaches_training(play: Play, faulty: bool) -> None:
    """It is counted in the run end; the other observers still see a bad step."""
    drill = Drill(faults=(Fault("loss", 2),) if faulty else ())
    played = play(2, drill, scripts.broken_observer)

    assert {end.rank: end.observers_off for end in played.of(RunEnd)} == {0: (), 1: ("loss",)}
    assert played.one("finite")
    assert {v.offender_rank for v in played.of(Verdict)} == ({0} if faulty else set())
    played.one("params")


def test_a_broken_guard_still_takes_part_and_all_ranks_stop_deciding_together(play: Play) -> None:
    """The degraded lane: the bad step is recorded and applied everywhere, no rank hangs or differs."""
    played = play(2, Drill(), scripts.broken_guard)

    first = min(played.of(Verdict), key=lambda v: v.step)
    assert (first.step, first.action.value, first.advised_action.value) == (1, "apply", "skip")
    assert "broken" in first.reason
    assert {(row.rank, row.step) for row in played.of(Step) if row.degraded} == {(1, 1)}
    played.one("params")


def test_an_exception_that_leaves_the_script_is_written_with_step_micro_step_and_batch(play: Play) -> None:
    """C5: before anything else ends."""
    ends = {end.rank: end for end in play(2, Drill(), scripts.script_error).of(RunEnd)}

    end = ends[0]
    assert (end.outcome.value, end.error_type, end.error, end.step, end.micro_step) == (
        "failed",
        "ValueError",
        "boom",
        1,
        1,
    )
    assert (end.sample_ids, end.shard_id, end.valid_tokens) == (("second",), ("s",), 2)
    assert (ends[1].outcome.value, ends[1].error_type, ends[1].step) == ("finished", None, None)


def test_a_scaled_loss_is_recorded_without_its_scale(play: Play) -> None:
    """Same weights and scale as without the agent, where one rank is all there are."""
    played, bare = play(1, Drill(), scripts.scaler), play(1, Drill(guard=False), scripts.scaler)

    assert played.one("params") == bare.one("params")
    assert played.one("scale") == bare.one("scale") == 512.0
    assert [row.skipped_step for row in played.of(Step)] == [False, True, False]
    assert [row.loss_scale for row in played.of(Step)] == [1024.0, 1024.0, 512.0]
    assert all(abs(row.loss) < 100 for row in played.of(Step))
    assert played.of(RunStart)[0].steered is True


def test_two_optimizers_of_one_backward_share_one_decision(play: Play) -> None:
    """A bad gradient in the second model keeps the first from stepping too: no half-applied step."""
    played = play(1, Drill(), scripts.adversaries)
    reference = play(1, Drill(guard=False, leave_out=(1,)), scripts.adversaries)

    assert played.one("params") == reference.one("params")
    assert played.one("second") == reference.one("second")
    assert [row.step for row in played.of(Step)] == [0, 1, 2]


def test_closures_run_once_and_a_step_without_backward_is_no_step(play: Play) -> None:
    """LBFGS evaluates its closure many times: it passes through, unprotected and unrecorded."""
    played = play(1, Drill(), scripts.closures)

    assert played.one("calls") == [0, 1, 2]
    assert played.one("returned") == [True, True, True]
    assert played.one("finite")
    assert [(row.step, row.skipped_step) for row in played.of(Step)] == [(0, False), (1, True), (2, False)]


def test_bad_values_that_a_model_masks_by_design_are_no_fault(play: Play) -> None:
    """NaN inputs, -inf outputs and a -inf mask buffer with a finite loss and finite gradients."""
    played = play(1, Drill(), scripts.masks_by_design)

    assert not played.of(Verdict)
    assert {row.action.value for row in played.of(Step)} == {"apply"}


@pytest.mark.parametrize("faulty", [False, True])
def test_the_guard_may_be_made_before_the_process_group(tmp_path: Path, faulty: bool) -> None:
    """As the launcher does: the ranks meet inside init_process_group."""
    ranks = rankworld.run(
        2, scripts.late_group, Drill(faults=(Fault("loss", 1),) if faulty else ()), str(tmp_path), group=False
    )
    records = ledger.records(tmp_path)

    assert len({rank["params"] for rank in ranks}) == 1
    assert {record.run_id for record in records} == {"late"}
    assert len({record.incarnation for record in records}) == 1
    assert any(isinstance(record, Verdict) for record in records) == faulty
    assert dense(records)


def test_gradients_are_cleared_by_a_skip_also_in_scripts_that_never_do_it(play: Play) -> None:
    """Else NaN would stay in .grad and every later step would be bad."""
    played = play(1, Drill(faults=(Fault("grad", 3),), zero_grad=False))

    assert played.ranks[0]["grads_clear"]
    assert [row.step for row in played.of(Step) if row.skipped_step] == [3]


def test_verdict_copies_are_equal_but_for_their_envelope_and_go_to_other_hosts_first(play: Play) -> None:
    """The offender's rank and two others write it."""
    verdicts = play(4, Drill(faults=(Fault("loss", 1, 0, 2),))).of(Verdict)
    bodies = {v.model_dump_json(exclude={"rank", "seq", "ts", "host"}) for v in verdicts}

    assert len(bodies) == 1
    assert {v.rank for v in verdicts} == {2, 3, 0}
    recorder = object.__new__(Recorder)
    recorder._world_size, recorder._hosts = 6, (1, 1, 1, 2, 2, 3)
    assert recorder._writers(0) == {0, 3, 4}
    recorder._hosts = (1, 1, 1, 1, 1, 2)
    assert recorder._writers(0) == {0, 5, 1}


def test_evidence_names_the_event_and_is_ordered(play: Play) -> None:
    """Rows of one event count up from 0."""
    rows = play(2, Drill(faults=(Fault("input", 1, 0, 1),))).of(Evidence)

    assert [row.order_index for row in rows] == list(range(len(rows)))
    assert rows[0].kind.value == "input"
    assert len({row.event_id for row in rows}) == 1


def test_importing_the_agent_changes_nothing_in_the_process() -> None:
    """No torch import, no root logger, no patched function."""
    code = (
        "import sys, logging; import firstbad.agent; "
        "assert 'torch' not in sys.modules; assert not logging.getLogger().handlers; "
        "firstbad.agent.batch(sample_ids=[1]); import torch; s = torch.optim.SGD.step; "
        "from firstbad.agent import Guard; assert torch.optim.SGD.step is s"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert logging.getLogger("firstbad.agent").handlers == []


def test_a_bad_checkpoint_loaded_in_mid_run_is_stage_param_and_its_path_is_kept(play: Play) -> None:
    """Not blamed on the data of the step that came after; the script's random state is never touched."""
    played = play(1, Drill(), scripts.resumes)

    assert [(v.step, v.first_bad_stage, v.action.value) for v in played.of(Verdict)] == [
        (2, "param", "skip"),
        (3, "param", "skip"),
    ]
    testimony = played.of(Testimony)[0]
    assert (testimony.parameter, testimony.checkpoint_parent) == ("2.weight", played.ranks[0]["path"])
    assert testimony.rng_state_hash
    assert played.ranks[0]["rng_untouched"]


def test_the_guard_takes_no_second_pass_over_gradients_whose_norm_is_there(play: Play) -> None:
    """Every norm in the profile of a clipping step is the script's own; without a clip there is one of ours."""
    with_guard = play(1, Drill(clip=1.0), scripts.profiled).ranks[0]
    without = play(1, Drill(clip=1.0, guard=False), scripts.profiled).ranks[0]
    unclipped = play(1, Drill(), scripts.profiled).ranks[0]

    assert with_guard == without
    assert unclipped


def test_a_watched_model_can_be_pickled_and_copied_and_the_file_needs_no_firstbad(play: Play) -> None:
    """Hooks that cannot be pickled would end a run at its first checkpoint."""
    played = play(1, Drill(), scripts.saves)

    assert played.ranks[0] == {"mentions": False, "equal": True}
    assert [row.step for row in played.of(Step)] == [0, 1, 2]


def test_steps_before_the_process_group_do_not_keep_the_ranks_from_deciding_together(tmp_path: Path) -> None:
    """They are an incarnation of their own; with the group the ranks meet and begin one together."""
    ranks = rankworld.run(2, scripts.group_after_steps, Drill(), str(tmp_path), group=False)
    records = ledger.records(tmp_path)

    assert len({rank["params"] for rank in ranks}) == 1
    assert all(rank["finite"] for rank in ranks)
    verdicts = [record for record in records if isinstance(record, Verdict)]
    assert {(v.step, v.offender_rank, v.world_size) for v in verdicts} == {(1, 1, 2)}
    assert len({record.incarnation for record in records}) == 3


def test_a_clip_between_micro_steps_does_not_hide_what_a_later_backward_adds(play: Play) -> None:
    """The norm of before is forgotten at the next backward."""
    played = play(1, Drill(), scripts.clips_then_goes_on)

    assert played.one("finite")
    assert [(v.step, v.action.value) for v in played.of(Verdict)] == [(1, "skip")]


def test_a_guard_made_after_optimizers_and_schedulers_protects_them_all(play: Play) -> None:
    """A scheduler keeps the unwrapped step on the instance; the second optimizer had not stepped yet."""
    played = play(1, Drill(), scripts.guard_comes_late)

    assert played.one("finite")
    assert played.one("one_finite")
    assert [(row.step, row.skipped_step) for row in played.of(Step)] == [(0, True), (1, False)]


def test_a_running_statistic_that_the_bad_forward_wrote_is_not_taken_for_the_cause(play: Play) -> None:
    """BatchNorm: the input is named, not the update before; odd dtypes switch no observer off."""
    played = play(1, Drill(), scripts.batch_norm)

    assert [(v.step, v.first_bad_stage, v.origin_step) for v in played.of(Verdict)] == [(2, "input", 2)]
    assert played.of(RunEnd)[0].observers_off == ()
