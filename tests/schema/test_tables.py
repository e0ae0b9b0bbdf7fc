"""The tables that the migrations make are the ones that the record models ask for, and keep what they are given."""

from __future__ import annotations

import math
from typing import Any

import pytest
from engine import Engine
from making import T0, Maker, event
from pydantic import ValidationError

from firstbad.schema import RECORD_TYPES, Record, Step, Testimony, Verdict, decode_record, encode_record
from firstbad.schema.migrations import split_statements
from firstbad.schema.tables import (
    columns,
    content_hash,
    create_table_sql,
    natural_key,
    row,
    sorting_key,
    table_columns,
    table_name,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("model", RECORD_TYPES, ids=table_name)
def test_a_migrated_table_is_the_one_the_model_asks_for(engine: Engine, empty: Engine, model: type[Record]) -> None:
    """Columns, types, order, key and engine, against a table rendered from the model."""
    for statement in split_statements(create_table_sql(model)):
        empty.command(statement)
    how = "SELECT engine_full FROM system.tables WHERE database = '{}' AND name = '{}'"
    name = table_name(model)

    assert engine.describe(f"migrated.{name}")[:-1] == list(columns(model))
    assert engine.describe(f"migrated.{name}") == empty.describe(name)
    assert engine.rows(how.format("migrated", name)) == empty.rows(how.format(empty.database, name))


@pytest.mark.parametrize("model", RECORD_TYPES, ids=table_name)
def test_every_column_is_described_and_every_key_is_a_column(model: type[Record]) -> None:
    """No field without unit, range and meaning of null."""
    names = [column.name for column in table_columns(model)]
    assert all(column.description for column in table_columns(model))
    assert set(natural_key(model)) <= set(names)
    assert set(natural_key(model)) < set(sorting_key(model)) <= set(names)
    assert "content_hash" in sorting_key(model)


@pytest.mark.parametrize("model", RECORD_TYPES, ids=table_name)
def test_a_column_takes_null_exactly_where_the_model_does(model: type[Record]) -> None:
    """Lists and maps are never null; empty means absent."""
    [record] = [item for item in Maker().one_of_each() if type(item) is model]
    for name, kind in columns(model):
        if name in model.model_fields:
            try:
                model.model_validate({**record.model_dump(), name: None})
                takes_null = True
            except ValidationError:
                takes_null = False
            assert takes_null == ("Nullable(" in kind), (name, kind)


def test_floats_and_nulls_come_back_from_the_engine_as_they_went_in(engine: Engine) -> None:
    """NaN is not null, null is not 0, infinities keep their sign."""
    make = Maker()
    values: list[float | None] = [NAN, INF, -INF, None, 0.0, -0.0, 1e-310]
    engine.add(*(make.step(i, loss=value) for i, value in enumerate(values)))

    got = [item[0] for item in engine.rows("SELECT loss FROM step_records ORDER BY step")]
    flags = engine.rows("SELECT isNaN(loss), isNull(loss), isNaN(ifNull(loss, 0)) FROM step_records ORDER BY step")

    assert [repr(value) for value in got] == [repr(value) for value in values]
    assert flags == [(1, 0, 1), (0, 0, 0), (0, 0, 0), (None, 1, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)]


def test_a_record_of_every_type_comes_back_from_its_table(engine: Engine) -> None:
    """Every value of `row`, lists, maps, flags and times included."""
    for record in Maker().one_of_each():
        engine.add(record)
        names = [name for name, kind in columns(type(record)) if not kind.startswith("DateTime64")]
        [got] = engine.dicts(f"SELECT {', '.join(f'`{name}`' for name in names)} FROM {table_name(type(record))}")
        want = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in row(record, T0).items()
            if name in names
        }
        assert repr(got) == repr({name: want[name] for name in names})
        stamps = engine.rows(f"SELECT toUnixTimestamp64Micro(ts) FROM {table_name(type(record))}")
        assert stamps == [(record.ts,)]


def test_equal_copies_collapse_to_the_first_that_came(engine: Engine) -> None:
    """In whatever order they were inserted, and whether merged or not."""
    record = Maker().step(4, loss=NAN)
    for ingest_ts in (T0 + 20, T0 + 10, T0 + 30):
        engine.add(record, ingest_ts=ingest_ts)
    ask = "SELECT toUnixTimestamp64Micro(ingest_ts) FROM step_records"

    assert len(engine.rows(ask)) == 3
    assert engine.rows(f"{ask} FINAL") == [(T0 + 10,)]
    engine.command("SYSTEM START MERGES")
    engine.command("OPTIMIZE TABLE step_records FINAL")
    engine.command("SYSTEM STOP MERGES")
    assert engine.rows(ask) == [(T0 + 10,)]


def test_different_contents_under_one_key_both_stay(engine: Engine) -> None:
    """A conflict is never merged away."""
    make = Maker()
    engine.add(make.step(4, loss=1.0), make.step(4, loss=2.0))
    assert engine.rows("SELECT loss FROM step_records FINAL ORDER BY loss") == [(1.0,), (2.0,)]


@pytest.mark.parametrize("model", [Verdict, Testimony])
def test_shared_records_are_equal_whoever_wrote_them(model: type[Record]) -> None:
    """Writer, sequence, time and host are envelope."""
    kind = "verdict" if model is Verdict else "testimony"
    first = getattr(Maker(), kind)(5, rank=0)
    other = getattr(Maker(start=T0 + 999), kind)(5, rank=3, seq=17)
    changed = getattr(Maker(), kind)(5, rank=0, event_id=event(6))

    assert content_hash(first) == content_hash(other)
    assert content_hash(first) != content_hash(changed)


@pytest.mark.parametrize("change", [{"seq": 9}, {"loss": 2.5}, {"loss": None}, {"loss_finite": False}, {"new": 1}])
def test_other_records_are_equal_only_when_they_say_the_same(change: dict[str, Any]) -> None:
    """Delivered twice is equal; another place, value or unknown field is not."""
    base = Maker().step(5)
    fields = {**base.model_dump(), **change}
    assert content_hash(base) == content_hash(Maker().step(5))
    assert content_hash(Step.model_validate(fields, strict=False)) != content_hash(base)


def test_hashes_take_nan_for_nan_and_survive_the_wire() -> None:
    """Two reads of the same bytes are the same content."""
    for record in [*Maker().one_of_each(), Maker().step(1, loss=NAN), Maker().step(1, loss=-INF)]:
        assert content_hash(decode_record(encode_record(record))) == content_hash(record)
    assert content_hash(Maker().step(1, loss=NAN)) != content_hash(Maker().step(1, loss=INF))


def test_a_field_learned_later_does_not_change_the_hash_of_old_bytes() -> None:
    """What is `extra` to an old reader and a field to a new one hashes alike, or re-reading would make conflicts."""

    class NewerStep(Step):
        """Step with two fields more."""

        gpu_clock: float | None = None
        notes: tuple[str, ...] = ()

    base = Maker().step(5).model_dump()
    told = {**base, "gpu_clock": 1.5, "notes": ("x",)}
    for fields in (base, told):
        old = Step.model_validate(fields, strict=False)
        new = NewerStep.model_validate(fields, strict=False)
        assert content_hash(old) == content_hash(new)


def test_unknown_fields_land_in_extra() -> None:
    """As a JSON object; NaN kept; empty text when there are none."""
    line = encode_record(Maker().step(5))[:-1] + b',"new":{"b":NaN,"a":[1]},"later":"x"}'
    assert row(decode_record(line), T0)["extra"] == '{"later":"x","new":{"a":[1],"b":NaN}}'
    assert row(Maker().step(5), T0)["extra"] == ""


def test_a_row_has_exactly_the_columns() -> None:
    """No more, no fewer, for every type; enumerations are text."""
    for record in Maker().one_of_each():
        values = row(record, T0)
        assert sorted(values) == sorted(name for name, _ in columns(type(record)))
        assert all(type(value) is str for value in values.values() if isinstance(value, str))
    assert math.isnan(row(Maker().step(1, loss=NAN), T0)["loss"])
