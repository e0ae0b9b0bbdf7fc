"""The collector: from journals to ClickHouse, and the ledger that readers open."""

from firstbad.collector.errors import (
    InsertError,
    JournalMissing,
    MigrationChanged,
    QueryError,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreMissing,
    StoreNotMigrated,
    StoreTooNew,
)
from firstbad.collector.store import Result, Store

__all__ = [
    "InsertError",
    "JournalMissing",
    "MigrationChanged",
    "QueryError",
    "Result",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreMissing",
    "StoreNotMigrated",
    "StoreTooNew",
]
