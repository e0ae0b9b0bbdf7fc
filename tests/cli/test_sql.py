"""`firstbad sql`: formats, standard input, and queries that are wrong."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from tests.cli.commandline import Console, run_firstbad

from firstbad.cli.encoding import UNKNOWN

MIXED = (
    "SELECT nan AS a, inf AS b, -inf AS c, CAST(NULL AS Nullable(Float64)) AS d, '' AS e, [1.5, nan] AS f, "
    "toDateTime64('2026-01-31 09:00:00.000005', 6, 'UTC') AS g, true AS h"
)


def test_json_is_strict_and_keeps_bad_values(console: Console) -> None:
    """NaN and the infinities are named strings, null is null, times are UTC."""
    assert console("sql", MIXED, "--json").json == [
        {
            "a": "NaN",
            "b": "Infinity",
            "c": "-Infinity",
            "d": None,
            "e": "",
            "f": [1.5, "NaN"],
            "g": "2026-01-31T09:00:00.000005Z",
            "h": True,
        }
    ]


def test_csv_keeps_bad_values(console: Console) -> None:
    """The same row as CSV; Python's own float() reads the names."""
    answer = console("sql", MIXED, "--format", "csv")

    header, row = csv.reader(answer.out.splitlines())
    assert header == list("abcdefgh")
    assert row == ["NaN", "Infinity", "-Infinity", "", "", '[1.5, "NaN"]', "2026-01-31T09:00:00.000005Z", "true"]
    assert math.isnan(float(row[0]))
    assert ',,"",' in answer.out


def test_a_table_keeps_bad_values(console: Console) -> None:
    """NaN is NaN, null is a dash, and no rule or column is cut."""
    answer = console("sql", MIXED)

    assert answer.out.splitlines()[2].split("  ")[:4] == ["NaN", "+Inf", "-Inf", UNKNOWN]


def test_no_rows(console: Console) -> None:
    """Each format says so in its own way."""
    query = "SELECT run_id, step FROM steps WHERE run_id = 'none'"

    assert console("sql", query).out == "run_id  step\n------  ----\n"
    assert console("sql", query, "--format", "csv").out == "run_id,step\n"
    assert console("sql", query, "--json").json == []


def test_the_query_may_come_from_standard_input(console: Console) -> None:
    """A dash reads it, with comments and line ends."""
    assert console("sql", "-", "--json", stdin="-- one\nSELECT 1 AS a\n;\n").json == [{"a": 1}]
    assert "the query is empty" in console("sql", "-", stdin=" \n").err


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELEC 1", ["Syntax error"]),
        ("SELECT nosuch FROM steps", ["nosuch", "DESCRIBE TABLE steps"]),
        ("SELECT * FROM nosuch", ["nosuch", "first_bad_steps"]),
        ("SELECT throwIf(1)", ["throwIf"]),
        ("SELECT toUInt8('x')", ["x"]),
        ("SELECT '", ["not closed"]),
        ("SELECT 1 FORMAT JSON", ["FORMAT"]),
        ("SELECT {a:String}", ["a"]),
    ],
)
def test_a_bad_query_gives_the_engines_reason_without_noise(console: Console, query: str, words: list[str]) -> None:
    """Exit code 2, one line, no prefixes, versions or frames."""
    answer = console("sql", query)

    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert len(answer.err) < 400
    for word in words:
        assert word in answer.err
    for noise in ("DB::Exception", "Code:", "version 2", "Traceback", "formatQuery", "Expected one of"):
        assert noise not in answer.err


def test_two_columns_of_one_name_are_not_folded_into_one(console: Console) -> None:
    """JSON objects cannot hold both, so the query is sent back; tables and CSV show both."""
    query = "SELECT a, b, a FROM (SELECT 1 AS a, 2 AS b)"

    assert console("sql", query, "--format", "csv").out == "a,b,a\n1,2,1\n"
    assert console("sql", query, "--json").code == 2
    assert "two columns are called a" in console("sql", query, "--json").err


def test_a_terminal_is_told_how_many_rows(console: Console) -> None:
    """On standard error, so that the answer stays clean."""
    answer = console("sql", "SELECT number FROM numbers(3)", columns=80)

    assert answer.err == "3 rows\n"


def test_the_console_script_reads_the_ledger_itself(sample_copy: Path) -> None:
    """Without the tests' shared process: open, ask, print, close."""
    query = "SELECT step, rank, sample_ids FROM first_bad_steps WHERE run_id = 'fine-tune-7b'"
    answer = run_firstbad("sql", query, "--json", "--db", str(sample_copy), cwd=sample_copy.parent)

    assert answer.err == ""
    assert answer.json == [
        {"step": 3, "rank": 1, "sample_ids": ["json/decoder.py:JSONDecoder.decode", "asyncio/tasks.py:\x1b[31mgather"]}
    ]
