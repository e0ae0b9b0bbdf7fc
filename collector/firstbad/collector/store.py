"""
The ledger's database: embedded ClickHouse (chdb) in one folder, opened by one process at a time.

    with Store.open(Path("firstbad-ledger/db"), purpose="sql") as store:
        print(store.query("SELECT * FROM first_bad_steps").rows)

Two sessions share the engine: `query` reads in a read-only one; `insert` and `command` are the collector's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from firstbad.collector.errors import InsertError, QueryError, StoreError, StoreFull, StoreMissing
from firstbad.collector.lock import LOCK_NAME, StoreLock
from firstbad.collector.statement import single_statement

if TYPE_CHECKING:
    from firstbad.collector.migrate import Migrated

DATABASE = "firstbad"
STAGING = "firstbad.insert"
"""The file in the ledger's folder through which an insert reaches the engine; a leftover is overwritten."""

_WRITER_SETTINGS = {
    "async_insert": "0",  # an insert that returned is in the table
    "optimize_on_insert": "0",  # merging rows of one block here costs more than it saves
    "input_format_null_as_default": "0",  # a null for a column that has none is an error, never 0
}
_NO_SPACE = ("NOT_ENOUGH_SPACE", "No space left on device", "Disk quota exceeded")
_TRANSIENT_CODES = frozenset({
    159,  # timeout
    202,  # too many simultaneous queries
    241,  # memory limit
    243,  # not enough space
    252,  # too many parts: merges are behind
    319,  # unknown status of insert
    394,  # cancelled
    473,  # deadlock avoided
    745,  # server overloaded
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """
    What a query gave: column names, their ClickHouse types, and rows.

    NaN stays NaN and null is None. DateTime64 with a time zone becomes an aware datetime, FixedString a str, a String
    that is not UTF-8 its lower-case hexadecimal digits.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """The rows by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Store:
    """An open ledger. Use from one thread at a time; not usable in a forked child, where the engine would hang."""

    def __init__(self, path: Path, lock: StoreLock) -> None:
        """Use `Store.open`."""
        self.path = path
        self._lock = lock
        self._pid = os.getpid()
        self._closed = False
        self._clients: list[Client] = []
        try:
            self._writer = self._connect(_WRITER_SETTINGS)
            self._writer.command(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            self._writer.database = DATABASE
            self._reader = self._connect({}, DATABASE)
            self._reader.command("SET readonly = 1")
            self.broken_parts: tuple[str, ...] = tuple(
                f"{table}/{name}"
                for table, name in self.query(
                    "SELECT table, name FROM system.detached_parts "
                    "WHERE database = {name:String} AND reason LIKE 'broken%' ORDER BY table, name",
                    {"name": DATABASE},
                ).rows
            )
            """Table parts that the engine found damaged and set aside at open, rows missing; empty when all is well."""
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path, *, purpose: str, create: bool = False) -> Store:
        """
        Open the ledger at `path`; `purpose` is told to whoever finds it locked, as "collect".

        With `create` a missing folder is made and pending migrations are allowed; without, the ledger must be there
        and up to date.

        Raises:
            StoreMissing: no ledger at this path.
            StoreLocked: another process has it open.
            StoreNotMigrated, StoreTooNew: its tables do not fit this firstbad.
            StoreError: anything else that keeps it from opening, in words.
        """
        path = Path(path)
        _check_folder(path, create)
        lock = StoreLock(path, purpose)
        try:
            store = cls(path, lock)
        except BaseException:
            lock.release()
            raise
        if not create:
            from firstbad.collector.migrate import check_migrated

            try:
                check_migrated(store)
            except BaseException:
                store.close()
                raise
        return store

    def query(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Result:
        """
        Run one reading statement; `parameters` fill `{name:Type}` places.

        Raises:
            QueryError: it is wrong, or more than one statement, or not one that reads.
        """
        self._check_usable()
        statement = single_statement(sql)
        bound = dict(parameters or {})
        try:
            if statement.lstrip("( \t\n")[:4].upper() == "SHOW":
                # The engine sends SHOW in a form that the Native reader does not take.
                return _texts(self._reader.raw_query(statement, bound, fmt="TabSeparatedWithNamesAndTypes"))
            result = self._reader.query(statement, bound, query_formats={"FixedString": "string"})
            rows = [tuple(row) for row in result.result_rows]
        except ClickHouseError as error:
            raise QueryError(sql, _message(error)) from error
        return Result(tuple(result.column_names), tuple(kind.name for kind in result.column_types), rows)

    def insert(self, table: str, rows: pa.Table) -> None:
        """
        Insert an Arrow table whose columns are named and typed exactly as the table's; returns once it is on disk.

        Raises:
            StoreFull: no space left.
            InsertError: the engine refused it.
        """
        self._check_usable()
        staging = self.path / STAGING
        columns = ", ".join(f"`{name}`" for name in rows.column_names)
        quoted = str(staging.resolve()).replace("\\", "\\\\").replace("'", "\\'")
        try:
            # Beside the tables, not in TMPDIR: one disk to run full, and nothing left behind when killed.
            with pa.OSFile(str(staging), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_table(rows)
            self._writer.command(
                f"INSERT INTO {DATABASE}.{table} ({columns}) FROM INFILE '{quoted}' FORMAT ArrowStream"
            )
        except OSError as error:
            raise StoreFull(self.path, str(error)) from error
        except ClickHouseError as error:
            message = _message(error)
            if any(sign in message for sign in _NO_SPACE):
                raise StoreFull(self.path, message) from error
            transient = getattr(error, "code", None) in _TRANSIENT_CODES
            raise InsertError(table, message, transient=transient) from error
        finally:
            staging.unlink(missing_ok=True)

    def command(self, sql: str) -> None:
        """
        Run one statement of firstbad's own that changes the database (DDL). Never pass on what a user typed.

        Raises:
            StoreError: the engine refused it.
        """
        self._check_usable()
        try:
            self._writer.command(sql)
        except ClickHouseError as error:
            raise StoreError(f"{_message(error)} (in: {sql:.200})") from error

    def migrate(self) -> list[str]:
        """Bring the tables and views up to date; the names of the migrations applied now, none when all were there."""
        return list(self.migrate_report().applied)

    def migrate_report(self) -> Migrated:
        """As `migrate`, with the migrations that were there before."""
        from firstbad.collector.migrate import migrate

        return migrate(self)

    def close(self) -> None:
        """Close the engine and release the lock; safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        for client in self._clients:
            client.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _connect(self, settings: dict[str, str], database: str | None = None) -> Client:
        try:
            client = clickhouse_connect.get_client(
                interface="chdb",
                path=str(self.path),
                database=database,
                settings=settings,
                tz_mode="schema",
                show_clickhouse_errors="scrub",
            )
        except ImportError as error:
            raise StoreError(
                f"the embedded ClickHouse is not installed ({error}); pip install 'firstbad[collector]'"
            ) from error
        except Exception as error:
            # The engine raises several unrelated types here, all with the cause in the text.
            raise StoreError(
                f"the database in {self.path} does not open: {error}. If its disk is full, free space; if files in it "
                "were changed by hand, restore them or start a new ledger folder."
            ) from error
        self._clients.append(client)
        return client

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                f"the ledger was opened by process {self._pid} and this is a fork of it ({os.getpid()}), in which the "
                "engine would hang; open it after the fork, or use the spawn start method"
            )
        if self._closed:
            raise StoreError(f"the ledger {self.path} is closed")


_ENGINE_SIGNS = "?*{}"
"""The engine reads these in a path as options or as a pattern, and would put the data somewhere else."""


def _check_folder(path: Path, create: bool) -> None:
    whole = os.path.abspath(path)
    signs = [sign for sign in _ENGINE_SIGNS if sign in whole]
    if signs:
        raise StoreError(f"cannot keep a ledger at {whole}: the name holds {' '.join(signs)}; choose one without")
    if path.exists() and not path.is_dir():
        raise StoreMissing(path, "it is a file")
    is_ledger = (path / LOCK_NAME).exists()
    if is_ledger:
        return
    if not create:
        raise StoreMissing(path, "the folder holds no ledger" if path.is_dir() else "there is no such folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        foreign = sorted(item.name for item in path.iterdir())
    except OSError as error:
        raise StoreError(f"cannot make a ledger at {path}: {error.strerror}") from error
    if foreign:
        raise StoreError(
            f"will not make a ledger in {path}: it already holds {', '.join(foreign[:3])}"
            f"{' and more' if len(foreign) > 3 else ''}. Give an empty or a new folder."
        )


def _texts(body: bytes) -> Result:
    lines = body.decode("utf-8", "replace").splitlines()
    if len(lines) < 2:
        return Result((), (), [])
    names, types, *rows = [tuple(line.split("\t")) for line in lines]
    return Result(names, types, list(rows))


def _message(error: BaseException) -> str:
    text = str(error).strip()
    # The engine repeats its own prefix when it re-raises.
    while text.startswith("Code: "):
        head, _, rest = text.partition("DB::Exception: ")
        if not rest:
            break
        text = rest
        del head
    return text
