"""Laws of the wire: whatever a record holds comes back, and damage never reads as a record that was not written."""

from __future__ import annotations

import contextlib
import string
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Maker

from firstbad.schema import (
    RECORD_TYPES,
    FrameError,
    Record,
    RecordError,
    decode_record,
    encode_frame,
    encode_record,
    record_name,
)
from firstbad.schema.codec import (
    HEADER,
    MAGIC,
    MAX_PAYLOAD,
    FrameKind,
    encode_seal,
    find_frame,
    read_frame,
)
from firstbad.schema.tables import columns, content_hash
from firstbad.schema.vocabulary import STAGE_LABELS

TEXT = st.text(max_size=30)
"""Any Unicode but lone surrogates, which no UTF-8 journal can hold."""
NEW_NAMES = st.text(string.ascii_lowercase + "_é", max_size=9).map(lambda name: f"new_{name}")
NEW_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)
PAYLOADS = st.lists(st.binary(max_size=40).filter(lambda data: b"\n" not in data), min_size=1, max_size=4)


def _values(kind: str, name: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a field, from its column type and JSON schema."""
    if name in ("incarnation", "event_id", "incident_id", "escalates"):
        return st.text("0123456789abcdef", min_size=32, max_size=32)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if name.startswith("stages_"):
        return st.lists(st.sampled_from(STAGE_LABELS), max_size=8).map(tuple)
    if kind.startswith("Array(UInt64"):
        return st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple)
    if kind.startswith("Array("):
        return st.lists(TEXT, max_size=4).map(tuple)
    if kind.startswith("Map("):
        return st.dictionaries(TEXT, TEXT, max_size=4)
    if kind.startswith("DateTime64"):
        return st.integers(0, 4_102_444_800_000_000)
    if kind.startswith("UInt"):
        return st.integers(0, 2 ** int(kind[4:]) - 1)
    if kind == "Int64":
        return st.integers(-(2**63), 2**63 - 1)
    if kind == "Float64":
        return st.floats(allow_nan=True, allow_infinity=True)
    if kind == "Bool":
        return st.booleans()
    return st.text(min_size=name == "run_id", max_size=30)


@cache
def _records_of(model: type[Record]) -> st.SearchStrategy[Record]:
    schema = model.model_json_schema()
    kinds = dict(columns(model))
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name in model.model_fields:
        if name in ("record", "version"):
            continue
        kind = kinds[name]
        field = schema["properties"][name]
        options = [field, *field.get("anyOf", [])]
        options += [schema["$defs"][item["$ref"].rsplit("/", 1)[1]] for item in options if "$ref" in item]
        enums = next((item for item in options if "enum" in item), {})
        nullable = "Nullable(" in kind
        for wrapper in ("LowCardinality(", "Nullable("):
            if kind.startswith(wrapper):
                kind = kind.removeprefix(wrapper).removesuffix(")")
        values = _values(kind, name, enums)
        fields[name] = st.none() | values if nullable else values
    return st.fixed_dictionaries(fields).map(lambda values: model.model_validate(values, strict=False))


RECORDS = st.one_of(*(_records_of(model) for model in RECORD_TYPES))


def same(one: Record, other: Record) -> bool:
    """Equal in type and every value, NaN for NaN, -0.0 for -0.0."""
    return type(one) is type(other) and repr(one.model_dump()) == repr(other.model_dump())


@pytest.mark.parametrize("model", RECORD_TYPES, ids=record_name)
def test_any_record_survives_its_bytes(model: type[Record]) -> None:
    """NaN, infinities, nulls, the largest integers and any text; one line of ASCII."""

    @settings(max_examples=60, deadline=None)
    @given(_records_of(model))
    def law(record: Record) -> None:
        line = encode_record(record)
        assert line.isascii()
        assert b"\n" not in line
        back = decode_record(line)
        assert same(back, record)
        assert content_hash(back) == content_hash(record)
        assert encode_record(back) == line

    law()


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NEW_NAMES, NEW_VALUES, max_size=3))
def test_unknown_fields_survive_too(extra: dict[str, Any]) -> None:
    """Whatever a newer writer says, nested or not finite; only a null may go, as for known fields."""
    record = Maker().step(1, **extra)
    back = decode_record(encode_record(record))
    assert content_hash(decode_record(encode_record(back))) == content_hash(back)
    assert set(back.model_extra or {}) == {name for name, value in extra.items() if value is not None}


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_a_frame_gives_back_its_records(records: list[Record]) -> None:
    """In order, and it says where it ends."""
    data = b"\x00junk" + encode_frame(encode_record(record) for record in records)
    frame = read_frame(data, 5)
    assert frame is not None
    assert (frame.kind, frame.start, frame.end) == (FrameKind.RECORDS, 5, len(data))
    assert all(same(decode_record(a), b) for a, b in zip(frame.payload.split(b"\n"), records, strict=True))


@settings(max_examples=60, deadline=None)
@given(PAYLOADS, st.data())
def test_a_truncated_frame_is_not_there_yet(payload: list[bytes], data: st.DataObject) -> None:
    """At any length: neither a frame nor damage, because the rest may still come."""
    whole = encode_frame(payload)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert read_frame(whole[:cut], 0) is None
    assert read_frame(whole, 0) is not None


@settings(max_examples=200, deadline=None)
@given(PAYLOADS, st.data())
def test_a_flipped_bit_never_reads_as_another_frame(payload: list[bytes], data: st.DataObject) -> None:
    """It is refused, or not there yet (a longer length), never other bytes."""
    whole = encode_frame(payload)
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        frame = read_frame(bytes(damaged), 0)
    except FrameError:
        return
    assert frame is None


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60).filter(lambda data: MAGIC[:1] not in data), PAYLOADS, PAYLOADS, st.data())
def test_a_reader_finds_its_way_past_damage(
    junk: bytes, first: list[bytes], second: list[bytes], data: st.DataObject
) -> None:
    """Foreign bytes, then a frame with a damaged payload, then a good one: the good one is found."""
    damaged = bytearray(encode_frame([b"x", *first]))
    damaged[data.draw(st.integers(HEADER.size, len(damaged) - 1))] ^= 0x55
    good = encode_frame(second)
    buffer = junk + bytes(damaged) + good
    found, offset = [], 0
    while offset < len(buffer):
        try:
            frame = read_frame(buffer, offset)
        except FrameError:
            frame = None
        if frame is None:
            offset = find_frame(buffer, offset + 1)
        else:
            found.append(frame.payload)
            offset = frame.end
    assert found[-1] == b"\n".join(second)


@settings(max_examples=30, deadline=None)
@given(RECORDS)
def test_no_record_holds_a_frame_start(record: Record) -> None:
    """Payloads are ASCII and the magic is not, so a search never stops inside an intact frame."""
    frame = encode_frame([encode_record(record)])
    assert find_frame(frame, 1) == len(frame)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80))
def test_random_bytes_are_never_records(data: bytes) -> None:
    """Only errors of the tree come out."""
    with pytest.raises(RecordError):
        decode_record(data)
    with contextlib.suppress(FrameError):
        assert read_frame(data, 0) is None


def test_a_seal_is_a_frame_without_records() -> None:
    """It ends a segment."""
    frame = read_frame(encode_seal(), 0)
    assert frame is not None
    assert (frame.kind, frame.payload, frame.end) == (FrameKind.SEAL, b"", HEADER.size)


def test_a_frame_has_a_largest_size() -> None:
    """A larger one is refused when written, and its length is damage when read."""
    assert read_frame(encode_frame([b"x" * MAX_PAYLOAD]), 0) is not None
    with pytest.raises(FrameError, match="split the records"):
        encode_frame([b"x" * (MAX_PAYLOAD + 1)])
    with pytest.raises(FrameError, match="out of range"):
        read_frame(HEADER.pack(MAGIC, 1, MAX_PAYLOAD + 1, 0), 0)
