"""Faults to order: what a user's own drill puts in is what the ledger names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ledger
import ordered
import pytest
import rankworld
import torch.distributed as dist
from ordered import Order
from played import Play

from firstbad.agent.testing import Fault, hang, kill, poison_gradient, poison_input, poison_parameter
from firstbad.schema import RunEnd, Step, Testimony, Verdict


@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        (poison_input(step=2, micro_step=1, rank=1), "input"),
        (poison_gradient("middle", step=2, micro_step=0, rank=1, value=-math.inf), "grad"),
        (poison_gradient("outlet", step=0, micro_step=1, rank=0), "grad"),
    ],
    ids=str,
)
def test_the_ledger_names_the_fault_that_was_ordered(play: Play, fault: Fault, stage: str, wrap: str) -> None:
    """Rank, step, micro step, stage and, for a gradient, the module; every rank skips; put in once, on its rank."""
    played = play(2, Order((fault,), wrap=wrap, micro_steps=2), ordered.train)

    assert [rank["log"] for rank in played.ranks] == [[str(fault)] if r == fault.rank else [] for r in range(2)]
    assert {(v.step, v.micro_step, v.offender_rank, v.first_bad_stage, v.action.value) for v in played.of(Verdict)} == {
        (fault.step, fault.micro_step, fault.rank, stage, "skip")
    }
    if stage == "grad":
        assert {t.module for t in played.of(Testimony)} == {fault.name}
    assert [row.skipped_step for row in played.of(Step) if row.rank == 0] == [s == fault.step for s in range(4)]


@pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "register_pre_hook"),
    reason="the compilers of older torch take no forward hook into a compiled DDP; InjectionFailed says so",
)
def test_a_compiled_model_takes_an_ordered_gradient(play: Play) -> None:
    """Given to the injector before its first call."""
    fault = poison_gradient("middle", step=2, rank=1)
    played = play(2, Order((fault,), wrap="compiled"), ordered.train)

    assert [rank["log"] for rank in played.ranks] == [[], [str(fault)]]
    assert {(v.step, v.offender_rank, v.first_bad_stage) for v in played.of(Verdict)} == {(2, 1, "grad")}


@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
@pytest.mark.parametrize(("step", "stage", "origin"), [(0, "param", 0), (2, "update", 1)])
def test_a_poisoned_parameter_is_named_and_stays_bad(play: Play, wrap: str, step: int, stage: str, origin: int) -> None:
    """Before the first forward it is stage param; later the update before it is charged; skipping never heals it."""
    fault = poison_parameter("outlet.weight", step=step, rank=1)
    played = play(2, Order((fault,), wrap=wrap), ordered.train)

    first = min(played.of(Verdict), key=lambda v: v.step)
    assert (first.step, first.first_bad_stage, first.origin_step) == (step, stage, origin)
    assert {v.step for v in played.of(Verdict)} == set(range(step, 4))
    assert {t.parameter for t in played.of(Testimony) if t.step == step} == {"outlet.weight"}


def test_a_fault_on_every_rank_makes_nobody_guilty(play: Play) -> None:
    """rank=None."""
    played = play(2, Order((poison_input(step=1, rank=None),)), ordered.train)

    assert {(v.step, v.all_ranks, v.offender_rank) for v in played.of(Verdict)} == {(1, True, None)}


def _one_is_lost(tmp_path: Path, function: Any, fault: Fault) -> tuple[dict[str, Any], int | None]:
    """The survivor's account, and the exit code of the rank that is lost (None while it hangs)."""
    journal = tmp_path / "journal"
    pipes, processes = rankworld.start(2, str(tmp_path), function, Order((fault,)), str(journal))
    try:
        assert pipes[0].poll(60)
        ok, value = pipes[0].recv()
        assert ok, value
        if fault == hang(step=2, rank=1):
            assert processes[1].is_alive()
            return value, None
        processes[1].join(30)
        return value, processes[1].exitcode
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize("fault", [kill(step=2, rank=1), hang(step=2, rank=1)], ids=str)
def test_a_lost_rank_ends_the_others_with_an_error(tmp_path: Path, fault: Fault) -> None:
    """Killed: at once. Hanging: within the group's timeout. The survivor's rows end before the step; it says failed."""
    hanging = fault.seconds == math.inf and fault.kind.value == "hang"
    survivor, code = _one_is_lost(tmp_path, ordered.hangs if hanging else ordered.train, fault)

    assert survivor["error"] is not None
    assert code == (None if hanging else -9)
    assert {row.step for row in ledger.of_type(tmp_path / "journal", Step)} == {0, 1}
    assert [(end.rank, end.outcome.value) for end in ledger.of_type(tmp_path / "journal", RunEnd)] == [(0, "failed")]


def test_a_drill_that_puts_nothing_in_says_why(play: Play) -> None:
    """A name that is not there, an input not passed on, token ids alone, a module with no backward."""
    (said,) = play(1, Order(), ordered.misses).ranks

    assert "outlet.wieght" in said[0] and "outlet.weight" in said[0]
    assert "inlett" in said[1] and "inlet" in said[1].split("There are")[1]
    assert "`inputs`" in said[2]
    assert "no floating-point tensor" in said[3]
    assert "part of the loss" in said[4]
    assert len(said) == 5


def test_batches_of_any_form_are_copied_with_one_bad_element(play: Play) -> None:
    """Once only; the script's own tensors, the random state and the container's type are left as they were."""
    (told,) = play(1, Order(), ordered.batches).ranks

    assert told["forms"] == [(True, 1, 0, 0)] * 7
    assert told["rng"]
