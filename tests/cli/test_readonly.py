"""`firstbad sql` reads the ledger and nothing else, whatever the disguise."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commandline import Console

WRITES = [
    "INSERT INTO steps SELECT * FROM steps",
    "INSERT INTO FUNCTION file('/tmp/firstbad-never') SELECT 1",
    "DROP TABLE step_records",
    "DROP TABLE IF EXISTS missing",
    "DROP DATABASE firstbad",
    "TRUNCATE TABLE step_records",
    "ALTER TABLE step_records DELETE WHERE 1",
    "CREATE TABLE t (a Int32) ENGINE = Memory",
    "CREATE TEMPORARY TABLE t (a Int32)",
    "CREATE VIEW v AS SELECT 1",
    "DELETE FROM step_records WHERE 1",
    "UPDATE step_records SET loss = 0 WHERE 1",
    "OPTIMIZE TABLE step_records",
    "RENAME TABLE step_records TO s",
    "DETACH TABLE step_records",
    "SYSTEM STOP MERGES",
    "KILL QUERY WHERE 1",
    "USE system",
    "SET max_threads = 1",
    "SET readonly = 0",
    "CHECK TABLE step_records",
    "GRANT SELECT ON *.* TO someone",
    "BACKUP DATABASE firstbad TO Disk('default', 'x')",
    "SELECT 1 SETTINGS readonly = 0",
    "WITH 1 AS a INSERT INTO step_records SELECT a",
    "EXPLAIN INSERT INTO step_records SELECT 1",
]

REACHES = [
    "SELECT * FROM file('{secret}')",
    "SELECT * FROM '{secret}'",
    "SELECT file('{secret}')",
    "SELECT FILE('{secret}')",
    "SELECT /* x */ file /* y */ ('{secret}')",
    "SELECT `file`('{secret}')",
    "SELECT \"file\"('{secret}')",
    "SELECT `fi\\x6ce`('{secret}')",
    "SELECT arrayMap(file, ['{secret}'])",
    "SELECT * APPLY(file) FROM (SELECT '{secret}' AS a)",
    "SELECT * APPLY file FROM (SELECT '{secret}' AS a)",
    "WITH file AS f SELECT f('{secret}')",
    "EXPLAIN SELECT file('{secret}')",
    "EXPLAIN SYNTAX SELECT file('{secret}')",
    "EXPLAIN AST SELECT 1",
    "DESCRIBE TABLE file('{secret}')",
    "DESCRIBE file('{secret}', 'LineAsString')",
    "DESC TABLE url('http://127.0.0.1:9/x', 'CSV')",
    "SELECT * FROM url('http://127.0.0.1:9/x', 'CSV', 'a String')",
    "SELECT * FROM remote('127.0.0.1:9', system.one)",
    "SELECT * FROM s3('http://127.0.0.1:9/b/x', 'CSV', 'a String')",
    "SELECT * FROM executable('x.sh', TSV, 'a String')",
    "SELECT * FROM mysql('127.0.0.1:9', 'd', 't', 'u', 'p')",
    "SELECT * FROM sqlite('{secret}', 't')",
    "SELECT * FROM python('x')",
    "SELECT * FROM loop(file('{secret}'))",
    "SELECT * FROM viewIfPermitted(SELECT 1 AS a ELSE file('{secret}'))",
    "SELECT aiGenerate('hello')",
    "SELECT AIClassify('a', ['b'])",
    "SELECT * FROM system.stack_trace",
    "SELECT * FROM system.disks",
    "SELECT (SELECT file('{secret}'))",
    "SELECT 1 UNION ALL SELECT length(file('{secret}'))",
    "(SELECT file('{secret}'))",
    "SELECT 1 -- harmless\n, file('{secret}')",
]

OUTFILES = [
    "SELECT 1 INTO OUTFILE '{target}'",
    "SELECT 1 into outfile '{target}' FORMAT CSV",
    "SELECT 1 INTO /* x */ OUTFILE '{target}'",
    "SELECT 1 INTO OUTFILE '{target}' TRUNCATE COMPRESSION 'none'",
    "EXPLAIN SELECT 1 INTO OUTFILE '{target}'",
    "SHOW TABLES INTO OUTFILE '{target}'",
    "(SELECT 1) INTO OUTFILE '{target}'",
    "DESCRIBE TABLE steps INTO OUTFILE '{target}'",
]


@pytest.mark.parametrize("query", WRITES)
def test_a_write_is_refused_and_changes_nothing(console: Console, query: str) -> None:
    """Exit code 2, a reason, and the same tables and rows as before."""
    count = "SELECT count() AS n, (SELECT count() FROM system.tables WHERE database = 'firstbad') AS t FROM steps"
    before = console("sql", count, "--json").json

    answer = console("sql", query)

    assert answer.code == 2, answer.out
    assert answer.out == ""
    assert answer.err.startswith("firstbad: ")
    assert "Traceback" not in answer.err
    assert console("sql", count, "--json").json == before


@pytest.mark.parametrize("query", REACHES)
def test_nothing_outside_the_ledger_is_read(console: Console, query: str, tmp_path: Path) -> None:
    """Files, hosts and the machine stay out of reach."""
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\nhush,1\n")

    answer = console("sql", query.format(secret=secret))

    assert answer.code == 2, answer.out
    assert answer.out == ""
    assert "hush" not in answer.err


@pytest.mark.parametrize("query", OUTFILES)
def test_no_query_writes_a_file(console: Console, query: str, tmp_path: Path) -> None:
    """INTO OUTFILE is refused before anything runs."""
    target = tmp_path / "out.csv"

    answer = console("sql", query.format(target=target))

    assert answer.code == 2, answer.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("query", ["SELECT 1; SELECT 2", "SELECT 1; DROP TABLE step_records", "SELECT 1;;SELECT 2"])
def test_one_statement_at_a_time(console: Console, query: str) -> None:
    """A second statement is refused, not ignored."""
    answer = console("sql", query)

    assert answer.code == 2
    assert answer.out == ""


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT 1 AS a;", [{"a": 1}]),
        ("  -- why\n SELECT 'a;b' AS a", [{"a": "a;b"}]),
        ("SELECT 'INTO OUTFILE file(x)' AS a", [{"a": "INTO OUTFILE file(x)"}]),
        ("WITH 2 AS a SELECT a", [{"a": 2}]),
        ("FROM runs SELECT DISTINCT run_id AS a WHERE run_id = 'clean'", [{"a": "clean"}]),
        ("SELECT format('{}-{}', 'x', 'y') AS a", [{"a": "x-y"}]),
        ("SELECT sum(number) AS a FROM numbers(4)", [{"a": 6}]),
        ("(SELECT 1 AS a) UNION ALL (SELECT 1 AS a)", [{"a": 1}, {"a": 1}]),
        ("EXISTS TABLE steps", [{"result": 1}]),
        ("SELECT step AS a FROM bad_steps WHERE run_id = 'fine-tune-7b'", [{"a": 3}]),
        ("SELECT 'it''s a \\t tab\\n' AS a", [{"a": "it's a \t tab\n"}]),
        ("SELECT '\N{SNOWMAN}' AS a", [{"a": "\N{SNOWMAN}"}]),
    ],
)
def test_what_only_reads_runs(console: Console, query: str, rows: list[dict[str, object]]) -> None:
    """The guard looks at names, not at texts and comments."""
    answer = console("sql", query, "--json")

    assert answer.err == ""
    assert answer.json == rows


@pytest.mark.parametrize(
    "query", ["SHOW TABLES", "DESCRIBE TABLE steps", "EXPLAIN SELECT 1", "SHOW CREATE TABLE steps"]
)
def test_the_ledger_explains_itself(console: Console, query: str) -> None:
    """Tables, columns and plans can be asked for."""
    answer = console("sql", query)

    assert answer.code == 0, answer.err
    assert answer.out.strip()
