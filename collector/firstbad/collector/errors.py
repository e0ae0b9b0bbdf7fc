"""
Errors of the collector and its store, as a tree:

    FirstbadError
    ├── JournalMissing       no journal folder at this path
    └── StoreError           something about the ledger's database
        ├── StoreMissing     no ledger at this path
        ├── StoreLocked      another process holds it
        ├── StoreNotMigrated its tables are older than this firstbad
        ├── StoreTooNew      its tables are newer than this firstbad
        ├── MigrationChanged an applied migration differs from the shipped one
        ├── StoreFull        no room left for an insert
        ├── InsertError      the engine refused an insert
        └── QueryError       a query is wrong or not allowed
"""

from __future__ import annotations

from pathlib import Path

from firstbad.schema import FirstbadError


class StoreError(FirstbadError):
    """Something about the ledger's database; the text says what to do."""


class StoreMissing(StoreError):
    """No ledger at `path`."""

    def __init__(self, path: Path, found: str) -> None:
        self.path = path
        super().__init__(
            f"no ledger at {path}: {found}. Give the folder that `firstbad collect --db` wrote, "
            "or make one with `firstbad migrate --db`."
        )


class StoreLocked(StoreError):
    """Another process has the ledger open; only one may at a time."""

    def __init__(self, path: Path, *, pid: int | None, purpose: str, since: str, command: str) -> None:
        self.path = path
        self.pid = pid
        self.purpose = purpose
        self.since = since
        self.command = command
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"the ledger {path} is open in {holder} ({purpose or 'purpose unknown'}, since {since or 'unknown'}"
            f"{f', command: {command}' if command else ''}). Only one process can open it: "
            "wait for it, or stop it with SIGTERM; nothing is lost."
        )


class StoreNotMigrated(StoreError):
    """The tables of the ledger are older than this firstbad."""

    def __init__(self, path: Path, pending: tuple[str, ...]) -> None:
        self.path = path
        self.pending = pending
        super().__init__(
            f"the ledger {path} lacks {len(pending)} migration(s): {', '.join(pending)}. "
            f"Run `firstbad migrate --db {path}`; `firstbad collect` does it by itself."
        )


class StoreTooNew(StoreError):
    """A newer firstbad has migrated the ledger; this one could misread it."""

    def __init__(self, path: Path, unknown: tuple[str, ...]) -> None:
        self.path = path
        self.unknown = unknown
        super().__init__(
            f"the ledger {path} has migration(s) that this firstbad does not know: {', '.join(unknown)}. "
            "A newer firstbad made them; upgrade this one."
        )


class MigrationChanged(StoreError):
    """A migration that was applied to this ledger differs from the one shipped under its number."""

    def __init__(self, path: Path, name: str, *, applied: str, shipped: str) -> None:
        self.path = path
        self.name = name
        super().__init__(
            f"migration {name} was applied to {path} with checksum {applied}, but this firstbad ships {shipped}. "
            "Migrations never change once released: install the firstbad that made the ledger, or start a new one."
        )


class StoreFull(StoreError):
    """No room left where the ledger lies. What was not inserted stays in the journal."""

    def __init__(self, path: Path, message: str) -> None:
        self.path = path
        super().__init__(
            f"no space left for the ledger {path}: {message}. Nothing is lost: the journal keeps what is not loaded. "
            "Free space there; the collector goes on from where it was."
        )


class InsertError(StoreError):
    """The engine refused an insert; `transient` tells that the same insert may pass later."""

    def __init__(self, table: str, message: str, *, transient: bool) -> None:
        self.table = table
        self.transient = transient
        super().__init__(f"insert into {table} failed: {message}")


class QueryError(StoreError):
    """A query is wrong, or is not one that a reader may run."""

    def __init__(self, sql: str, message: str) -> None:
        self.sql = sql
        self.message = message
        super().__init__(message)


class JournalMissing(FirstbadError):
    """The journal folder is not there."""

    def __init__(self, path: Path, found: str) -> None:
        self.path = path
        super().__init__(
            f"no journal at {path}: {found}. Give the folder that training writes to (`--journal`, FIRSTBAD_JOURNAL)."
        )
