"""Typed columns: what does not fit is an error that names the column, because the engine would wrap it silently."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from firstbad.collector.arrow import arrow_field, arrow_schema, arrow_table
from firstbad.schema import RECORD_TYPES
from firstbad.schema.tables import columns


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("UInt32", 2**32),
        ("UInt32", -1),
        ("UInt8", 256),
        ("UInt64", 2**64),
        ("Int64", 2**63),
        ("UInt32", None),
        ("Float64", None),
        ("Float64", "1.0"),
        ("Bool", 2),
        ("String", 5),
        ("LowCardinality(String)", None),
        ("Array(UInt64)", [1, -1]),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_an_error_that_names_it(kind: str, value: Any) -> None:
    """Never another value."""
    with pytest.raises(ValueError, match="width"):
        arrow_table(arrow_schema([("width", kind)]), [{"width": value}])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("UInt64", 2**64 - 1),
        ("Int64", -(2**63)),
        ("Float64", float("nan")),
        ("Float64", float("-inf")),
        ("Nullable(Float64)", None),
        ("LowCardinality(Nullable(String))", None),
        ("Nullable(Bool)", False),
        ("Array(String)", []),
        ("FixedString(32)", "a" * 32),
        ("Map(String, String)", [("k", "v")]),
    ],
)
def test_a_value_that_fits_stays_itself(kind: str, value: Any) -> None:
    """NaN is a value, and not null."""
    given = dict(value) if kind.startswith("Map") else value
    column = arrow_table(arrow_schema([("width", kind)]), [{"width": given}])["width"]

    assert repr(column.to_pylist()[0]) == repr(value)
    assert column.null_count == (value is None)


@pytest.mark.parametrize("model", RECORD_TYPES, ids=lambda model: model.__name__)
def test_every_column_of_the_ledger_has_an_arrow_type(model: Any) -> None:
    """A column type that is new to the collector shows here, not in production."""
    schema = arrow_schema(columns(model))

    assert schema.names == [name for name, _ in columns(model)]
    assert all(field.nullable == ("Nullable(" in kind) for field, (_, kind) in zip(schema, columns(model), strict=True))


def test_a_type_that_is_not_known_is_an_error() -> None:
    """Rather than a guess."""
    with pytest.raises(ValueError, match="Decimal"):
        arrow_field("x", "Decimal(9, 2)")
    assert arrow_field("t", "DateTime64(6, 'UTC')").type == pa.timestamp("us", "UTC")
