"""
Arrow columns for ClickHouse columns: the exact type, so that nothing is converted on the way in.

ClickHouse wraps an Arrow integer of another width silently, and turns a null into 0 where a column has none. Here an
integer out of range and a null out of place are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

_PLAIN: dict[str, pa.DataType] = {
    "String": pa.string(),
    "Bool": pa.bool_(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "DateTime64(6, 'UTC')": pa.timestamp("us", "UTC"),
}
_WRAPPED = re.compile(r"(Nullable|LowCardinality|Array|Map|FixedString)\((.*)\)")


def arrow_field(name: str, clickhouse_type: str) -> pa.Field:
    """
    The Arrow field of a ClickHouse column.

    Raises:
        ValueError: a type that no column of the ledger has.
    """
    nullable = "Nullable(" in clickhouse_type
    return pa.field(name, _arrow_type(clickhouse_type), nullable=nullable)


def _arrow_type(kind: str) -> pa.DataType:
    if kind in _PLAIN:
        return _PLAIN[kind]
    match = _WRAPPED.fullmatch(kind)
    if match is None:
        raise ValueError(f"no Arrow type is set for the ClickHouse type {kind}")
    wrapper, inner = match.groups()
    if wrapper == "FixedString":
        return pa.string()
    if wrapper == "Array":
        return pa.list_(_arrow_type(inner))
    if wrapper == "Map":
        key, _, value = inner.partition(", ")
        return pa.map_(_arrow_type(key), _arrow_type(value))
    return _arrow_type(inner)


def arrow_schema(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    """The Arrow schema of a table, from its columns' names and ClickHouse types."""
    return pa.schema([arrow_field(name, kind) for name, kind in columns])


def arrow_table(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """
    An Arrow table of rows, which hold a value for every column. NaN stays NaN; microseconds stand for times.

    Raises:
        ValueError: a value does not fit its column; the text names the column.
    """
    columns = []
    for field in schema:
        values = [row[field.name] for row in rows]
        if pa.types.is_map(field.type):
            values = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
        try:
            column = pa.array(values, field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{field.name}: {error}") from error
        if column.null_count and not field.nullable:
            raise ValueError(f"{field.name}: null, in a column that always has a value")
        columns.append(column)
    # Fields stay nullable for Arrow: the check above is the one that counts.
    return pa.Table.from_arrays(columns, names=schema.names)
