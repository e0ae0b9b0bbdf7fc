"""Callbacks without their frameworks: their way to a guard, what they read from a batch, and that they never raise."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ledger
import pytest
import rankworld
import torch

from firstbad.agent.guard import Guard, active
from firstbad.agent.integrations.attaching import Teller
from firstbad.agent.integrations.fabric import FirstbadCallback
from firstbad.agent.integrations.fields import describe, valid_labels
from firstbad.agent.integrations.transformers import FirstbadCollator
from firstbad.schema import Outcome, Step, Verdict


def test_a_batch_tells_its_identity_under_the_names_of_batch_or_of_webdataset() -> None:
    """Own names win; labels of -100 do not count; what is no mapping tells nothing."""
    labels = torch.tensor([[1, -100, 3], [-100, -100, -100]])
    assert describe({"sample_ids": [4, 5], "labels": labels}) == {"sample_ids": [4, 5], "valid_tokens": 2}
    assert describe({"__key__": ["a"], "__url__": ["s.tar"], "shard_id": "mine"}) == {
        "sample_ids": ["a"],
        "shard_id": "mine",
        "valid_tokens": None,
    }
    assert describe({"valid_tokens": 7, "labels": labels})["valid_tokens"] == 7
    assert describe((torch.zeros(2), labels)) == {}


@pytest.mark.parametrize(
    ("labels", "shifted", "count"),
    [
        (torch.tensor([[1, 2, -100], [3, -100, -100]]), False, 3),
        (torch.tensor([[1, 2, -100], [3, -100, -100]]), True, 1),
        (torch.tensor([0, 1, 2]), False, 3),
        (torch.tensor([0.5, 1.5]), False, None),
        (torch.empty(2, 3, dtype=torch.int64, device="meta"), False, None),
        ("words", False, None),
    ],
)
def test_valid_labels(labels: object, shifted: bool, count: int | None) -> None:
    """Only integer labels on the CPU are counted; a shifted loss never reads the first of a row."""
    assert valid_labels(labels, shifted=shifted) == count


def test_the_collator_carries_ids_past_the_users_own() -> None:
    """The user's collator sees its own columns alone; rows without an id give a batch without ids."""
    seen: list[set[str]] = []

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        seen.extend(set(row) for row in rows)
        return {"labels": torch.stack([row["labels"] for row in rows])}

    rows = [{"row": index, "file": "a", "labels": torch.tensor([1, 2, -100])} for index in (7, 8)]
    batch = FirstbadCollator(collate, sample_ids="row", shard_id="file")(rows)
    assert (batch["sample_ids"], batch["shard_id"], batch["valid_tokens"]) == ([7, 8], ["a", "a"], 2)
    assert seen == [{"labels"}] * 2
    assert "sample_ids" not in FirstbadCollator(collate)([{"labels": torch.tensor([1, 2])}])


def loop(rank: int, journal: str, launched: bool, broken: bool) -> dict[str, Any]:
    """A Fabric user's loop; in step 2 rank 1's batch holds a NaN."""
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("firstbad.agent").addHandler(handler)
    made = Guard(journal=journal, run_id="run") if launched else None
    settings = {} if launched else {"journal": journal, "run_id": "run"}

    def refuse(batch: object) -> dict[str, Any]:
        raise KeyError("id")

    callback = FirstbadCallback(refuse, **settings) if broken else FirstbadCallback(**settings)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback.on_train_start()
    for step in range(4):
        x = torch.full((2, 3), float("nan") if (rank, step) == (1, 2) else 1.0 + step)
        callback.on_train_batch_start({"x": x, "sample_ids": [10 * step + rank]}, step, step=100 + step)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    guard = active()
    assert guard is not None
    assert made in (None, guard)
    guard.finish(Outcome.FINISHED)
    return {"weight": model.module.weight.tolist(), "warnings": warnings}


@pytest.mark.parametrize("launched", [True, False])
def test_a_callback_uses_the_guard_that_is_there_or_makes_one(tmp_path: Path, launched: bool) -> None:
    """Either way: one ledger, the loop's own steps and ids, the true rank, the same weights."""
    first, second = rankworld.run(2, loop, str(tmp_path), launched, False)
    assert first["weight"] == second["weight"]
    rows = ledger.of_type(tmp_path, Step)
    assert [(row.rank, row.step, row.trainer_step, row.sample_ids) for row in rows] == [
        (rank, step, 100 + step, (str(10 * step + rank),)) for rank in (0, 1) for step in range(4)
    ]
    assert {(v.step, v.offender_rank) for v in ledger.of_type(tmp_path, Verdict)} == {(2, 1)}


def test_a_batch_that_cannot_be_described_never_stops_training(tmp_path: Path) -> None:
    """It is said once, on each rank; steps are still told, and the bad step is still found."""
    results = rankworld.run(2, loop, str(tmp_path), True, True)
    for result in results:
        assert len([text for text in result["warnings"] if "could not be described (KeyError: 'id')" in text]) == 1
    rows = ledger.of_type(tmp_path, Step)
    assert [row.trainer_step for row in rows] == [100, 101, 102, 103] * 2
    assert not any(row.sample_ids for row in rows)
    assert {(v.step, v.offender_rank) for v in ledger.of_type(tmp_path, Verdict)} == {(2, 1)}


def tell_with_settings(rank: int, journal: str) -> tuple[bool, list[str]]:
    """A callback with settings of its own beside a guard."""
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("firstbad.agent").addHandler(handler)
    guard = Guard(journal=journal)
    Teller(describe, {"policy": "observe"})
    return active() is guard and guard.settings.policy.value == "skip", warnings


def test_settings_of_a_callback_beside_a_guard_are_said_to_be_unused(tmp_path: Path) -> None:
    """Silence would let somebody believe that a run is only observed."""
    ((kept, warnings),) = rankworld.run(1, tell_with_settings, str(tmp_path), group=False)
    assert kept
    assert any("the callback's own settings (policy) are not used" in text for text in warnings)
