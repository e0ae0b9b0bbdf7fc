"""The numbered SQL files: a proper sequence, safe to run twice, and free of any database's name."""

from __future__ import annotations

import pytest
from engine import Engine
from making import Maker

from firstbad.schema.migrations import (
    MigrationError,
    SqlFile,
    migrations,
    parse_migrations,
    split_statements,
    sql_files,
    views,
)


def test_shipped_migrations_are_numbered_from_one_without_holes() -> None:
    """And each has a name and a checksum of its own."""
    found = migrations()
    assert [item.number for item in found] == list(range(1, len(found) + 1))
    assert found[0].name == "0001_ledger"
    assert all(len(item.checksum) == 64 for item in found)
    assert len({item.checksum for item in found}) == len(found)


def test_migrations_and_views_may_run_again_over_a_filled_ledger(engine: Engine) -> None:
    """A kill between a statement and its record makes them run twice; rows stay."""
    engine.add(*Maker().one_of_each())
    before = engine.rows("SELECT record, seq FROM internal_record_index ORDER BY ALL")

    engine.migrate()

    assert engine.rows("SELECT record, seq FROM internal_record_index ORDER BY ALL") == before


def test_nothing_names_a_database(engine: Engine) -> None:
    """Everything was made where the connection stood."""
    tables = engine.rows("SELECT count() FROM system.tables WHERE database = currentDatabase()")
    made = sum(statement.count("CREATE TABLE") for item in migrations() for statement in item.statements)
    assert tables == [(made + len(views()),)]


def test_tables_write_through_to_disk(engine: Engine) -> None:
    """What the collector acknowledges has to survive a power cut, so every table is set to fsync."""
    lazy = engine.rows(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree' "
        "AND NOT (engine_full LIKE '%fsync_after_insert = 1%' AND engine_full LIKE '%fsync_part_directory = 1%')"
    )
    assert lazy == []


def test_views_come_one_to_a_file_after_what_they_read() -> None:
    """So that re-creating them in order works on an empty database."""
    seen: set[str] = set()
    names = [file.name.removesuffix(".sql").split("_", 1)[1] for file in sql_files("views")]
    for name, file, statement in zip(names, sql_files("views"), views(), strict=True):
        assert len(split_statements(file.text)) == 1
        assert statement.startswith((f"CREATE OR REPLACE VIEW {name}\n", f"CREATE OR REPLACE VIEW {name} AS"))
        for other in names:
            if other not in seen and other != name:
                assert f"FROM {other}\n" not in statement
                assert f"JOIN {other} " not in statement
        seen.add(name)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("0002_a.sql", "SELECT 1;")], "number 1 was expected"),
        ([("0001_a.sql", "SELECT 1;"), ("0003_b.sql", "SELECT 1;")], "number 2 was expected"),
        ([("0001_a.sql", "SELECT 1;"), ("0001_b.sql", "SELECT 1;")], "number 2 was expected"),
        ([("1_a.sql", "SELECT 1;")], "named NNNN_words"),
        ([("0001_a.sql", "-- nothing\n")], "holds no statement"),
    ],
)
def test_a_broken_sequence_is_refused(files: list[tuple[str, str]], message: str) -> None:
    """With the file's name and what would be right."""
    with pytest.raises(MigrationError, match=message) as caught:
        parse_migrations([SqlFile(*item) for item in files])
    assert files[-1][0] in str(caught.value)


def test_statements_end_at_semicolons_that_end_lines() -> None:
    """One inside a line, as in a text, does not end one; comments before a statement are dropped."""
    text = "-- first\nSELECT ';' AS a,\n  1;\n\n-- second\n-- and more\nSELECT 2;  \n-- tail\n"
    assert split_statements(text) == ("SELECT ';' AS a,\n  1", "SELECT 2")


def test_the_checksum_tells_changed_files() -> None:
    """An applied migration that was edited is found out."""
    one, two = (parse_migrations([SqlFile("0001_a.sql", text)])[0] for text in ("SELECT 1;", "SELECT 2;"))
    assert one.checksum != two.checksum
