"""Records are strict: a wrong value is refused in words, an unknown field is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from making import Maker

from firstbad.schema import Record, RecordError, Step, UnknownRecord, decode_record, encode_record


def told(original: Record, **changes: Any) -> bytes:
    """A record's line with some fields changed; a field given as ... is left out."""
    fields = {**json.loads(encode_record(original)), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


STEP, START, VERDICT, GAP = Maker().step(3), Maker().run_start(), Maker().verdict(3), Maker().gap(1, 2)
EVIDENCE, END, TESTIMONY = Maker().evidence(3), Maker().run_end(), Maker().testimony(3)


@pytest.mark.parametrize(
    ("record", "changes", "words"),
    [
        (STEP, {"step": "3"}, "step"),
        (STEP, {"step": 3.0}, "step"),
        (STEP, {"step": True}, "step"),
        (STEP, {"step": -1}, "greater than or equal to 0"),
        (STEP, {"step": 2**64}, "less than or equal to"),
        (STEP, {"step": None}, "step"),
        (STEP, {"step": ...}, "Field required"),
        (STEP, {"rank": 2**32}, "rank"),
        (STEP, {"trainer_step": 2**63}, "trainer_step"),
        (STEP, {"loss": "NaN"}, "loss"),
        (STEP, {"loss": [1.0]}, "loss"),
        (STEP, {"loss_finite": 1}, "loss_finite"),
        (STEP, {"degraded": None}, "degraded"),
        (STEP, {"action": "Apply"}, "'apply', 'skip' or 'stop'"),
        (STEP, {"first_bad_stage": "gradient"}, "first_bad_stage"),
        (STEP, {"shard_id": None}, "shard_id"),
        (STEP, {"shard_id": ["s"] * 17}, "at most 16"),
        (STEP, {"sample_ids": [7]}, "sample_ids"),
        (STEP, {"sample_ids": "abc"}, "sample_ids"),
        (STEP, {"run_id": ""}, "at least 1 character"),
        (STEP, {"run_id": "r" * 201}, "at most 200"),
        (STEP, {"incarnation": "0" * 31}, "incarnation"),
        (STEP, {"incarnation": "A" * 32}, "incarnation"),
        (STEP, {"incarnation": "0" * 32 + "\n"}, "incarnation"),
        (STEP, {"ts": -1}, "ts"),
        (STEP, {"ts": 4_102_444_800_000_001}, "ts"),
        (STEP, {"ts": "2026-01-01"}, "ts"),
        (STEP, {"host": "h" * 1025}, "host"),
        (START, {"libraries": {"numpy": 2}}, "libraries"),
        (START, {"policy": "ignore"}, "policy"),
        (START, {"argv": None}, "argv"),
        (VERDICT, {"event_id": None}, "event_id"),
        (VERDICT, {"last_good_step": -(2**63) - 1}, "last_good_step"),
        (VERDICT, {"stages_any": ["loss", "nowhere"]}, "stages_any"),
        (VERDICT, {"kind": "accident"}, "kind"),
        (TESTIMONY, {"stage": None}, "stage"),
        (EVIDENCE, {"kind": "weight"}, "kind"),
        (EVIDENCE, {"shape": [-1]}, "shape"),
        (END, {"outcome": "killed"}, "outcome"),
        (GAP, {"reason": "bored"}, "reason"),
    ],
)
def test_a_wrong_value_is_refused_by_field_and_rule(record: Record, changes: dict[str, Any], words: str) -> None:
    """Nothing is converted: what ClickHouse would wrap or turn into 0 does not get that far."""
    decode_record(told(record))
    with pytest.raises(RecordError) as caught:
        decode_record(told(record, **changes))
    assert words in str(caught.value)
    assert next(iter(changes)) in str(caught.value)
    assert not isinstance(caught.value, UnknownRecord)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"3", b"null", b'"step"', b"\xff\xfe", b'{"a":1}{"b":2}', b"NaN"])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    """Bytes that are no JSON object, or have no type."""
    with pytest.raises(RecordError):
        decode_record(line)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"record": "checkpoint"}, "'checkpoint' is not known here"),
        ({"record": ...}, "None is not known here"),
        ({"version": 2}, "step version 2 is newer than this firstbad reads"),
        ({"version": 2, "action": "teleport"}, "step version 2 is newer"),
    ],
)
def test_a_newer_writer_is_told_from_a_broken_one(changes: dict[str, Any], words: str) -> None:
    """A type or version that is not known here: keep the bytes, upgrade, load again."""
    with pytest.raises(UnknownRecord, match=words):
        decode_record(told(STEP, **changes))


def test_unknown_fields_are_kept_through_a_round_trip() -> None:
    """An old reader does not lose what a newer writer of the same version adds."""
    line = told(STEP, gpu_clock=1.5, nested={"a": [1, None]})
    record = decode_record(line)
    assert record.model_extra == {"gpu_clock": 1.5, "nested": {"a": [1, None]}}
    again = decode_record(encode_record(record))
    assert again.model_extra is not None
    assert again.model_extra["gpu_clock"] == 1.5
    assert set(again.model_extra["nested"]) == {"a"}


def test_records_cannot_be_changed() -> None:
    """What was said stays said."""
    with pytest.raises(ValueError, match="frozen"):
        Maker().step(1).loss = 2.0  # type: ignore[misc]


def test_an_absent_nullable_field_is_null() -> None:
    """Writers leave nulls out; readers see null, never 0."""
    record = decode_record(told(STEP, loss=..., learning_rate=None))
    assert isinstance(record, Step)
    assert (record.loss, record.learning_rate, record.shard_id) == (None, None, ())


def test_whole_numbers_are_floats_where_a_float_is_asked() -> None:
    """JSON writers may write 1 for 1.0."""
    record = decode_record(told(STEP, loss=1))
    assert isinstance(record, Step)
    assert repr(record.loss) == "1.0"
