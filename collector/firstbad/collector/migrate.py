"""Brings a ledger's tables up to the migrations that firstbad.schema ships, then re-creates the public views."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from firstbad.collector.errors import MigrationChanged, StoreNotMigrated, StoreTooNew
from firstbad.schema.migrations import Migration, migrations, views

if TYPE_CHECKING:
    from firstbad.collector.store import Store

_RECORDED = pa.schema([
    ("number", pa.uint32()),
    ("name", pa.string()),
    ("checksum", pa.string()),
    ("applied_ts", pa.timestamp("us", "UTC")),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Migrated:
    """What `migrate` found and did: names of migrations that were there, and of those applied now."""

    present: tuple[str, ...]
    applied: tuple[str, ...]


def migrate(store: Store) -> Migrated:
    """
    Apply pending migrations in order and re-create the views. Idempotent, also after a kill at any point: a migration
    is recorded after its last statement, and its statements may run twice.

    Raises:
        MigrationChanged: an applied migration is not the one shipped.
        StoreTooNew: the ledger has migrations that this firstbad does not know.
        StoreError: the engine refused a statement.
    """
    pending = _pending(store)
    for migration in pending:
        for statement in migration.statements:
            store.command(statement)
        row = (migration.number, migration.name, migration.checksum, time.time_ns() // 1000)
        columns = [pa.array([value], kind) for value, kind in zip(row, _RECORDED.types, strict=True)]
        store.insert("schema_migrations", pa.Table.from_arrays(columns, schema=_RECORDED))
    for statement in views():
        store.command(statement)
    names = tuple(migration.name for migration in pending)
    return Migrated(tuple(item.name for item in migrations() if item.name not in names), names)


def check_migrated(store: Store) -> None:
    """
    Refuse a ledger whose tables do not fit this firstbad.

    Raises:
        StoreNotMigrated, StoreTooNew, MigrationChanged: in which way.
    """
    pending = _pending(store)
    if pending:
        raise StoreNotMigrated(store.path, tuple(item.name for item in pending))


def _pending(store: Store) -> tuple[Migration, ...]:
    applied: dict[int, tuple[str, str]] = {}
    if store.query("EXISTS TABLE schema_migrations").rows[0][0]:
        rows = store.query("SELECT number, name, checksum FROM schema_migrations ORDER BY number").rows
        applied = {number: (name, checksum) for number, name, checksum in rows}
    shipped = {item.number: item for item in migrations()}
    unknown = tuple(name for number, (name, _) in applied.items() if number not in shipped)
    if unknown:
        raise StoreTooNew(store.path, unknown)
    for number, (name, checksum) in applied.items():
        if checksum != shipped[number].checksum:
            raise MigrationChanged(store.path, name, applied=checksum, shipped=shipped[number].checksum)
    return tuple(item for item in shipped.values() if item.number not in applied)
