"""One database of the embedded engine, with tables and views, for tests that look at SQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from clickhouse_connect.driver.client import Client
from making import T0

from firstbad.schema import Record
from firstbad.schema.migrations import migrations, views
from firstbad.schema.tables import columns, row, table_name


class Engine:
    """One database of the embedded engine."""

    def __init__(self, client: Client, database: str) -> None:
        self.client, self.database = client, database

    def command(self, sql: str) -> None:
        """Run a statement in this database."""
        self.client.command(sql)

    def rows(self, sql: str, settings: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return [tuple(item) for item in self.client.query(sql, settings=settings).result_rows]

    def dicts(self, sql: str, settings: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of a query by column name."""
        result = self.client.query(sql, settings=settings)
        return [dict(zip(result.column_names, item, strict=True)) for item in result.result_rows]

    def describe(self, what: str) -> list[tuple[str, str]]:
        """Names and types of the columns of a table, view or (query)."""
        return [(item[0], item[1]) for item in self.rows(f"DESCRIBE {what}")]

    def migrate(self) -> None:
        """Apply all migrations and views."""
        for migration in migrations():
            for statement in migration.statements:
                self.command(statement)
        for statement in views():
            self.command(statement)

    def clear(self) -> None:
        """Empty every table that holds rows, of this database."""
        self.command(f"USE {self.database}")
        for (name,) in self.rows(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND total_rows > 0 AND engine != 'View'"
        ):
            self.command(f"TRUNCATE TABLE {name}")

    def insert(self, table: str, names: list[str], values: list[Any]) -> None:
        """Insert one row."""
        self.client.insert(table, [values], column_names=names)

    def add(self, *records: Record, ingest_ts: int = T0) -> None:
        """Insert records, each in an insert of its own, so that copies lie in different parts."""
        for record in records:
            values = row(record, ingest_ts)
            kinds = columns(type(record))
            self.insert(
                table_name(type(record)),
                [name for name, _ in kinds],
                [_time(values[name]) if kind.startswith("DateTime64") else values[name] for name, kind in kinds],
            )


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)
