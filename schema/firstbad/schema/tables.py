"""
Records as rows: which table, which columns, what makes two rows copies of one another.

Everything here follows from the record models. The numbered SQL files under sql/migrations are what is applied to a
database; a test proves on the real engine that they give exactly these columns and keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from functools import cache
from hashlib import blake2b
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from firstbad.schema.fields import Column
from firstbad.schema.records import (
    RECORD_TYPES,
    Evidence,
    Gap,
    Record,
    RunEnd,
    RunStart,
    Step,
    Testimony,
    Verdict,
    record_name,
)

_TYPE_FIELDS = ("record", "version")
_ENVELOPE = tuple(name for name in Record.model_fields)

_NATURAL_KEYS: dict[type[Record], tuple[str, ...]] = {
    RunStart: ("run_id", "incarnation", "rank"),
    Step: ("run_id", "incarnation", "step", "rank"),
    Verdict: ("run_id", "incarnation", "step"),
    Testimony: ("run_id", "incarnation", "step"),
    Evidence: ("run_id", "incarnation", "step", "rank", "order_index"),
    RunEnd: ("run_id", "incarnation", "rank"),
    Gap: ("run_id", "incarnation", "rank", "seq"),
}

_SHARED: tuple[type[Record], ...] = (Verdict, Testimony)
"""Records whose identity does not depend on who wrote them: several ranks may write the same."""

KEEP_FIRST = "keep_first"
"""The column by which ReplacingMergeTree keeps, of equal copies, the one that came first."""

_KEEP_FIRST_SQL = f"{KEEP_FIRST} UInt64 MATERIALIZED 4102444800000000 - toUnixTimestamp64Micro(ingest_ts)"
_STORAGE = "SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column as it is inserted: name, full ClickHouse type, and what it means."""

    name: str
    type: str
    description: str


_ADDED = (
    TableColumn("record_version", "UInt16", "Version of the record type that the writer used."),
    TableColumn(
        "extra", "String", "JSON object of fields that this firstbad does not know; empty when there are none."
    ),
    TableColumn("content_hash", "UInt64", "Equal for equal copies; see content_hash in firstbad.schema.tables."),
    TableColumn("ingest_ts", "DateTime64(6, 'UTC')", "When the collector began the insert, UTC, by its own clock."),
)


def table_name(model: type[Record]) -> str:
    """The base table of a record type, as `step_records`. Users read the views instead."""
    return f"{record_name(model)}_records"


@cache
def table_columns(model: type[Record]) -> tuple[TableColumn, ...]:
    """The columns to insert for a record type, in order: envelope, body, then what the collector adds."""
    fields = tuple(
        TableColumn(name, _clickhouse_type(model, name), field.description or "")
        for name, field in model.model_fields.items()
        if name not in _TYPE_FIELDS
    )
    return fields + _ADDED


@cache
def columns(model: type[Record]) -> tuple[tuple[str, str], ...]:
    """Name and ClickHouse type of each column to insert."""
    return tuple((column.name, column.type) for column in table_columns(model))


def natural_key(model: type[Record]) -> tuple[str, ...]:
    """The columns that say which fact a row is about; two contents under one key are a conflict."""
    return _NATURAL_KEYS[model]


def sorting_key(model: type[Record]) -> tuple[str, ...]:
    """
    The table's ORDER BY: rows equal in it are copies and collapse.

    It holds the content, so that different contents stay; and for records that several ranks write alike the writer,
    so that each copy keeps its place in its writer's sequence.
    """
    writer = ("rank", "seq") if model in _SHARED else ()
    return (*_NATURAL_KEYS[model], "content_hash", *writer)


def content_hash(record: Record) -> int:
    """
    64 bits that are equal exactly when two records say the same.

    For verdict and testimony that is the body: any rank may have written it, at any time. For the others it is
    everything, so equal means delivered twice. NaN equals NaN. A null and an empty list or map count as absent, and
    fields this firstbad does not know count as fields, so that the same bytes keep their hash across versions.
    """
    left_out = (*_TYPE_FIELDS, *_ENVELOPE) if isinstance(record, _SHARED) else _TYPE_FIELDS
    values = {**record.__dict__, **(record.model_extra or {})}
    said = {
        name: value
        for name, value in values.items()
        if name not in left_out and not (value is None or value == () or value == [] or value == {})
    }
    text = f"{record_name(record)} {_json(said)}"
    return int.from_bytes(blake2b(text.encode("ascii"), digest_size=8).digest(), "little")


def row(record: Record, ingest_ts: int) -> dict[str, Any]:
    """
    A record as a table row: a value for each of `columns`.

    Times are microseconds since 1970 UTC, enumerations their text; NaN stays NaN, null stays None.

    Args:
        record: a valid record.
        ingest_ts: when the insert began, microseconds since 1970 UTC.
    """
    values = {
        name: value.value if isinstance(value, Enum) else value
        for name, value in record.__dict__.items()
        if name not in _TYPE_FIELDS
    }
    values["record_version"] = record.__dict__["version"]
    values["extra"] = _json(record.model_extra) if record.model_extra else ""
    values["content_hash"] = content_hash(record)
    values["ingest_ts"] = ingest_ts
    return values


def create_table_sql(model: type[Record]) -> str:
    """The CREATE TABLE statement that the models ask for; the shipped migrations are tested against it."""
    lines = [f"    `{column.name}` {column.type}" for column in table_columns(model)]
    lines.append(f"    {_KEEP_FIRST_SQL}")
    return (
        f"CREATE TABLE IF NOT EXISTS {table_name(model)}\n(\n" + ",\n".join(lines) + "\n)\n"
        f"ENGINE = ReplacingMergeTree({KEEP_FIRST})\n"
        f"ORDER BY ({', '.join(sorting_key(model))})\n"
        f"{_STORAGE};\n"
    )


def all_tables_sql() -> str:
    """`create_table_sql` of every record type, as a first migration would hold it."""
    return "\n".join(create_table_sql(model) for model in RECORD_TYPES)


# Python's encoder keeps NaN and infinities, and writes one text for one value.
_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=True).encode


def _clickhouse_type(model: type[Record], name: str) -> str:
    field = model.model_fields[name]
    # pydantic strips the outermost Annotated into `metadata`.
    found, nullable = _unwrap(field.annotation)
    kinds = [item.type for item in field.metadata if isinstance(item, Column)] or found
    if len(kinds) != 1:
        raise TypeError(
            f"{model.__name__}.{name}: its type has {len(kinds)} columns {kinds}; give it one from fields.py"
        )
    kind = kinds[0]
    if not nullable:
        return kind
    if kind.startswith(("Array(", "Map(")):
        raise TypeError(f"{model.__name__}.{name}: {kind} cannot be null in ClickHouse; let empty mean absent")
    if kind.startswith("LowCardinality("):
        return f"LowCardinality(Nullable({kind.removeprefix('LowCardinality(')})"
    return f"Nullable({kind})"


def _unwrap(annotation: Any) -> tuple[list[str], bool]:
    """Column types named in an annotation, and whether None is allowed."""
    origin = get_origin(annotation)
    if origin is Annotated:
        _, *metadata = get_args(annotation)
        return [item.type for item in metadata if isinstance(item, Column)], False
    if origin in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not NoneType]
        kinds = [kind for part in parts for kind in _unwrap(part)[0]]
        return kinds, len(parts) < len(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ["LowCardinality(String)"], False
    return [], False
