"""Holding the ledger against the log: agreement, and each kind of disagreement."""

from __future__ import annotations

from typing import Any

import pytest

from firstbad.cli.demo.compare import compare_with_log, compare_with_order, expected_offenders
from firstbad.cli.demo.order import Place
from firstbad.cli.demo.ranklogs import EmptyBatch

EMPTY = [
    EmptyBatch(7, 1, 0, ("c.py:h", "json/a.py:i")),
    EmptyBatch(7, 0, 3, ("a.py:f", "b.py:g")),
    EmptyBatch(9, 1, 2, ("c.py:h", "json/a.py:i")),
]
SHARDS = {"a.py:f": "Lib", "b.py:g": "Lib", "c.py:h": "Lib", "json/a.py:i": "json"}


def _row(step: int, micro_step: int, rank: int, samples: list[str], shards: list[str]) -> dict[str, Any]:
    return {
        "step": step,
        "micro_step": micro_step,
        "rank": rank,
        "first_bad_stage": "loss",
        "valid_tokens": 0,
        "sample_ids": samples,
        "shard_id": shards,
        "action": "skip",
        "applied": False,
        "conflict": False,
    }


def _ledger() -> list[dict[str, Any]]:
    return [_row(7, 0, 3, ["a.py:f", "b.py:g"], ["Lib"]), _row(9, 1, 2, ["c.py:h", "json/a.py:i"], ["Lib", "json"])]


def test_the_expected_offender_is_the_smallest_micro_step_then_rank() -> None:
    """An earlier micro step wins over a smaller rank."""
    assert {step: (e.micro_step, e.rank) for step, e in expected_offenders(EMPTY).items()} == {7: (0, 3), 9: (1, 2)}


def test_a_ledger_that_tells_the_same_has_no_disagreement() -> None:
    """In any order of its rows."""
    assert compare_with_log(EMPTY, _ledger()[::-1], SHARDS) == []


@pytest.mark.parametrize(
    ("field", "value", "what", "says"),
    [
        ("rank", 0, "rank", "the log says 2, the ledger says 0"),
        ("rank", None, "rank", "the ledger says nothing"),
        ("micro_step", 0, "micro step", "the log says 1, the ledger says 0"),
        ("micro_step", None, "micro step", "the ledger says nothing"),
        ("first_bad_stage", "grad", "stage", "the log says loss, the ledger says grad"),
        ("sample_ids", ["json/a.py:i", "c.py:h"], "samples", "the ledger says json/a.py:i, c.py:h"),
        ("sample_ids", [], "samples", "the ledger says nothing"),
        ("shard_id", ["Lib"], "shards", "the log says Lib, json"),
        ("valid_tokens", 3, "valid labels", "the log says 0, the ledger says 3"),
        ("valid_tokens", None, "valid labels", "the ledger says nothing"),
        ("action", "apply", "action", "the log says skip, the ledger says apply"),
        ("applied", True, "applied", "the ledger says True"),
        ("applied", None, "applied", "the ledger says nothing"),
        ("conflict", True, "conflict", "the ledger says True"),
    ],
)
def test_each_field_of_a_later_bad_step_counts(field: str, value: object, what: str, says: str) -> None:
    """One wrong field in the second incident is one disagreement, told with both sides."""
    ledger = _ledger()
    ledger[1][field] = value

    (found,) = compare_with_log(EMPTY, ledger, SHARDS)

    assert (found.step, found.what) == (9, what)
    assert says in str(found)


def test_a_bad_step_that_is_missing_invented_or_told_twice_is_found() -> None:
    """Steps are compared both ways."""
    ledger = _ledger()

    assert str(*compare_with_log(EMPTY, ledger[:1], SHARDS)) == ("step 9, bad: the log says yes, the ledger says no")
    assert str(*compare_with_log(EMPTY[:2], ledger, SHARDS)) == (
        "step 9, bad: the log says no, the ledger says yes, stage loss"
    )
    assert "in 2 different rows" in str(*compare_with_log(EMPTY, [*ledger, ledger[1]], SHARDS))


def test_a_log_that_left_the_data_order_is_found() -> None:
    """Both directions, by place."""
    order = [Place(7, 0, 3), Place(7, 1, 0), Place(9, 1, 2)]

    assert compare_with_order(order, EMPTY, "bare") == []
    assert len(compare_with_order(order[:2], EMPTY, "bare")) == 1
    assert "not in the log" in compare_with_order([*order, Place(11, 0, 0)], EMPTY, "bare")[0]
