"""
A batch: what some portions of segments become, ready to be inserted. Every line ends as a row or as a dead letter.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from firstbad.collector.arrow import arrow_schema, arrow_table
from firstbad.collector.deadletter import DeadLetter, Reason
from firstbad.collector.source import Line, Portion, Position
from firstbad.schema import RECORD_TYPES, Record, RecordError, UnknownRecord, decode_record, record_name
from firstbad.schema.tables import columns, row, table_name

MAX_ROWS = 200_000
"""Rows of one insert."""
MAX_BYTES = 64 * 1024 * 1024
"""Arrow bytes of one insert; one row may exceed it."""

_SCHEMAS = {model: arrow_schema(columns(model)) for model in RECORD_TYPES}
_LETTERS = arrow_schema([
    ("file", "String"),
    ("offset", "UInt64"),
    ("reason", "LowCardinality(String)"),
    ("detail", "String"),
    ("bytes", "String"),
    ("content_hash", "UInt64"),
    ("ingest_ts", "DateTime64(6, 'UTC')"),
]).set(4, pa.field("bytes", pa.binary()))  # fmt: skip
_POSITIONS = arrow_schema([
    ("file", "String"),
    ("inode", "UInt64"),
    ("offset", "UInt64"),
    ("sealed", "Bool"),
    ("updated_ts", "DateTime64(6, 'UTC')"),
])  # fmt: skip


class Batch:
    """Portions turned into rows and dead letters. `ingest_ts` of all of them is the time the batch was begun."""

    def __init__(self) -> None:
        self.ingest_ts = time.time_ns() // 1000
        self.letters: list[DeadLetter] = []
        self.positions: dict[str, Position] = {}
        self.size = 0
        """Journal bytes in it."""
        self.records: Counter[str] = Counter()
        """Rows by record type."""
        self._rows: dict[type[Record], list[dict[str, Any]]] = {}
        self._origins: dict[type[Record], list[tuple[str, Line]]] = {}

    def add(self, portion: Portion) -> None:
        """Take one portion; later portions of a segment come after earlier ones."""
        file = portion.position.file
        self.positions[file] = portion.position
        self.size += portion.size
        self.letters += portion.letters
        for line in portion.lines:
            try:
                record = decode_record(line.data)
                values = row(record, self.ingest_ts)
            except UnknownRecord as error:
                self._reject(file, line, "unknown_record", str(error))
            except (RecordError, ValueError, OverflowError, RecursionError) as error:
                self._reject(file, line, "bad_record", str(error))
            else:
                self._rows.setdefault(type(record), []).append(values)
                self._origins.setdefault(type(record), []).append((file, line))

    def record_tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Tables to insert, by name, each small enough for one insert. Call before `letter_tables`."""
        for model, rows in self._rows.items():
            for start in range(0, len(rows), MAX_ROWS):
                end = start + MAX_ROWS
                table = self._convert(model, rows[start:end], self._origins[model][start:end])
                self.records[record_name(model)] += table.num_rows
                for part in _split(table):
                    yield table_name(model), part

    def letter_tables(self) -> Iterator[tuple[str, pa.Table]]:
        """The dead letters, as `record_tables`."""
        if self.letters:
            rows = [
                {
                    "file": letter.file,
                    "offset": letter.offset,
                    "reason": letter.reason,
                    "detail": letter.detail[:4096],
                    "bytes": letter.data,
                    "content_hash": int.from_bytes(blake2b(letter.data, digest_size=8).digest(), "little"),
                    "ingest_ts": self.ingest_ts,
                }
                for letter in self.letters
            ]
            for part in _split(arrow_table(_LETTERS, rows)):
                yield "dead_letter_records", part

    def position_table(self) -> tuple[str, pa.Table]:
        """How far each segment was read; to be inserted last."""
        rows = [
            {
                "file": item.file,
                "inode": item.inode,
                "offset": item.offset,
                "sealed": item.sealed,
                "updated_ts": self.ingest_ts,
            }
            for item in self.positions.values()
        ]
        return "segment_progress", arrow_table(_POSITIONS, rows)

    def _convert(self, model: type[Record], rows: list[dict[str, Any]], origins: list[tuple[str, Line]]) -> pa.Table:
        schema = _SCHEMAS[model]
        try:
            return arrow_table(schema, rows)
        except ValueError:
            good = []
            for values, (file, line) in zip(rows, origins, strict=True):
                try:
                    arrow_table(schema, [values])
                except ValueError as error:
                    self._reject(file, line, "bad_record", str(error))
                else:
                    good.append(values)
            return arrow_table(schema, good)

    def _reject(self, file: str, line: Line, reason: Reason, detail: str) -> None:
        self.letters.append(DeadLetter(file, line.offset, reason, detail, line.data))


def _split(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows > 1 and table.nbytes > MAX_BYTES:
        half = table.num_rows // 2
        yield from _split(table.slice(0, half))
        yield from _split(table.slice(half))
    elif table.num_rows:
        yield table
