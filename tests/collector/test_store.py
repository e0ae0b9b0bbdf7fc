"""The ledger's store: who may open it, what a reader may run, and what its errors say."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from firstbad.collector import (
    MigrationChanged,
    QueryError,
    Store,
    StoreError,
    StoreLocked,
    StoreMissing,
    StoreNotMigrated,
    StoreTooNew,
)
from firstbad.collector.lock import LOCK_NAME
from firstbad.collector.statement import single_statement


@pytest.fixture(name="db")
def _db(tmp_path: Path) -> Path:
    """A migrated, empty ledger."""
    with Store.open(tmp_path / "db", purpose="test", create=True) as store:
        store.migrate()
    return tmp_path / "db"


@pytest.mark.parametrize("name", ["absent", "file", "folder"])
def test_a_path_without_a_ledger_is_said_to_be_one_and_is_left_alone(tmp_path: Path, name: str) -> None:
    """Opening to read never makes anything."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()

    with pytest.raises(StoreMissing, match="no ledger at"):
        Store.open(tmp_path / name, purpose="sql")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_folder_with_other_files_is_not_turned_into_a_ledger(tmp_path: Path) -> None:
    """A mistyped --db must not fill somebody's project with a database."""
    (tmp_path / "thesis.tex").write_text("")

    with pytest.raises(StoreError, match=r"already holds thesis\.tex"):
        Store.open(tmp_path, purpose="collect", create=True)


def test_who_finds_the_ledger_locked_is_told_by_whom(db: Path) -> None:
    """The process, its purpose and its command."""
    with Store.open(db, purpose="collect"), pytest.raises(StoreLocked) as caught:
        Store.open(db, purpose="sql")

    assert caught.value.pid == os.getpid()
    assert caught.value.purpose == "collect"
    assert str(os.getpid()) in str(caught.value)
    Store.open(db, purpose="sql").close()


def test_a_lock_file_without_a_readable_holder_still_locks(db: Path) -> None:
    """A full disk may have kept the holder from writing its name."""
    with Store.open(db, purpose="collect"):
        (db / LOCK_NAME).write_bytes(b"\xff{")
        with pytest.raises(StoreLocked, match="another process"):
            Store.open(db, purpose="sql")


def test_a_ledger_that_was_not_migrated_is_not_read(tmp_path: Path) -> None:
    """The error says what to run."""
    Store.open(tmp_path / "db", purpose="test", create=True).close()

    with pytest.raises(StoreNotMigrated, match="firstbad migrate"):
        Store.open(tmp_path / "db", purpose="sql")


def test_migrating_twice_changes_nothing_and_keeps_the_rows(db: Path) -> None:
    """All migrations are applied once; the views are there each time."""
    with Store.open(db, purpose="migrate", create=True) as store:
        before = store.query("SELECT * FROM schema_migrations ORDER BY number").rows
        assert store.migrate() == []
        assert store.query("SELECT * FROM schema_migrations ORDER BY number").rows == before
        assert len(before) == len(store.migrate_report().present) > 0
        assert store.query("SELECT count() FROM steps").rows == [(0,)]


def test_an_applied_migration_that_differs_from_the_shipped_one_is_an_error(db: Path) -> None:
    """The ledger is not guessed at."""
    with Store.open(db, purpose="test") as store:
        store.command("DELETE FROM schema_migrations WHERE number = 1")
        store.command("INSERT INTO schema_migrations (number, name, checksum) VALUES (1, '0001_ledger', 'other')")

    with pytest.raises(MigrationChanged, match="checksum other"):
        Store.open(db, purpose="sql")
    with Store.open(db, purpose="migrate", create=True) as store, pytest.raises(MigrationChanged):
        store.migrate()


def test_a_ledger_of_a_newer_firstbad_is_not_read(db: Path) -> None:
    """Rows of tables that this one does not know could be misread."""
    with Store.open(db, purpose="test") as store:
        store.command("INSERT INTO schema_migrations (number, name, checksum) VALUES (9000, '9000_future', 'x')")

    with pytest.raises(StoreTooNew, match="9000_future"):
        Store.open(db, purpose="sql")


def test_results_keep_names_types_and_values(db: Path) -> None:
    """NaN and infinities, null, times with their zone, 64-bit integers, fixed strings, bytes that are not text."""
    sql = """
        SELECT nan AS n, -inf AS i, CAST(NULL AS Nullable(Float64)) AS u, 18446744073709551615 AS big,
               toDateTime64(1.5, 6, 'UTC') AS t, toFixedString('ab', 2) AS f, ['x'] AS a, {p:String} AS p,
               unhex('ff00') AS b
    """
    with Store.open(db, purpose="test") as store:
        result = store.query(sql, {"p": "it's; -- \\ fine"})

    assert result.columns == ("n", "i", "u", "big", "t", "f", "a", "p", "b")
    assert result.types[3:6] == ("UInt64", "DateTime64(6, 'UTC')", "FixedString(2)")
    assert repr(result.rows[0][:3]) == "(nan, -inf, None)"
    assert result.rows[0][3:] == (
        2**64 - 1,
        datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        "ab",
        ["x"],
        "it's; -- \\ fine",
        "ff00",
    )
    assert result.dicts()[0]["f"] == "ab"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "empty"),
        (" -- nothing\n", "empty"),
        ("SELECT 1; SELECT 2", "more than one"),
        ("SELECT 1; DROP TABLE step_records", "more than one"),
        ("DROP TABLE step_records", "DROP is not a reading statement"),
        ("/* SELECT */ INSERT INTO FUNCTION file('x.csv') SELECT 1", "INSERT is not"),
        ("SET readonly = 0", "SET is not"),
        ("SYSTEM SHUTDOWN", "SYSTEM is not"),
        ("SELECT 1 FORMAT CSV", "FORMAT CSV"),
        ("SELECT 1 INTO OUTFILE 'x'", "OUTFILE"),
        ("SELECT nope FROM steps", "nope"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT 1 SETTINGS readonly = 0", "readonly"),
        ("SELECT (", "Syntax error"),
    ],
)
def test_a_query_that_is_wrong_or_does_more_than_read_is_refused(db: Path, sql: str, message: str) -> None:
    """The text says why; the engine's own words where it knows better."""
    with Store.open(db, purpose="sql") as store, pytest.raises(QueryError, match=message) as caught:
        store.query(sql)
    assert caught.value.sql == sql
    assert not caught.value.message.startswith("Code: ")


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT 1;", [(1,)]),
        ("(SELECT 1)", [(1,)]),
        ("WITH 2 AS x SELECT x -- ; done", [(2,)]),
        ("SELECT ';' -- '", [(";",)]),
        ("# comment\nSELECT 'it''s', 'a\\'b;c'", [("it's", "a'b;c")]),
        ("SHOW TABLES LIKE 'step_records'", [("step_records",)]),
        ("SELECT 1 WHERE 0", []),
    ],
)
def test_queries_are_taken_as_people_write_them(db: Path, sql: str, rows: list[tuple[object, ...]]) -> None:
    """Semicolons and comments where they do no harm."""
    with Store.open(db, purpose="sql") as store:
        assert store.query(sql).rows == rows


def test_the_statement_is_cut_out_without_its_surroundings() -> None:
    """Quoted semicolons stay."""
    assert single_statement("  /* a */ SELECT `x;y` ;; -- z") == "SELECT `x;y`"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told_instead_of_hanging(db: Path) -> None:
    """The engine's threads do not survive a fork; a query there would never return."""
    with Store.open(db, purpose="test") as store:
        child = os.fork()
        if child == 0:
            try:
                store.query("SELECT 1")
            except StoreError:
                os._exit(7)
            os._exit(8)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert store.query("SELECT 1").rows == [(1,)]


def test_a_closed_store_says_so(db: Path) -> None:
    """Closing twice is harmless."""
    store = Store.open(db, purpose="test")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.query("SELECT 1")
