"""`firstbad sql`: any reading query over the public views."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from firstbad.cli.encoding import csv_lines, json_text
from firstbad.cli.engine import explained
from firstbad.cli.errors import CommandError
from firstbad.cli.ledger import Ledger
from firstbad.cli.options import add_db, db_path
from firstbad.cli.readonly import reading_query
from firstbad.cli.session import Session

if TYPE_CHECKING:
    from firstbad.collector.store import Result

HELP = "run a reading SQL query on the ledger"
DESCRIPTION = """\
Runs one reading query (ClickHouse SQL) on the ledger and prints its rows. Public tables are the views runs, ranks,
steps, bad_steps, first_bad_steps, evidence, incidents, gaps, conflicts and dead_letters; `SHOW TABLES` lists them and
`DESCRIBE TABLE steps` their columns. Whatever writes, or reaches outside the ledger, is refused.

  firstbad sql "SELECT step, rank, first_bad_stage, sample_ids FROM first_bad_steps"
  firstbad sql --format csv "SELECT step, rank, loss FROM steps ORDER BY step, rank" > loss.csv
  echo "SELECT count() FROM steps WHERE NOT loss_finite" | firstbad sql -

json: a list of objects. csv: null is an empty field and the empty text is "". Both write NaN, Infinity and -Infinity
by these names.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `sql`."""
    parser.add_argument("query", metavar="QUERY", help="the query, or - to read it from standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", choices=("table", "csv", "json"), default="table", help="default: table")
    form.add_argument("--json", dest="format", action="store_const", const="json", help="same as --format json")
    add_db(parser)


def run(options: argparse.Namespace, session: Session) -> int:
    """Check the query, run it, print its rows."""
    sql = sys.stdin.read() if options.query == "-" else options.query
    path = db_path(options)
    with session.opener(path, purpose="sql") as store, explained():
        ledger = Ledger(store, path)
        result = _answered(ledger, reading_query(ledger, sql))
    terminal = session.terminal
    if options.format == "csv":
        for line in csv_lines(result.columns, result.rows):
            terminal.line(line)
    elif options.format == "json":
        twice = sorted({name for name in result.columns if result.columns.count(name) > 1})
        if twice:
            raise CommandError(f"two columns are called {', '.join(twice)}; give one another name with AS")
        rows = [json_text(dict(zip(result.columns, row, strict=True)), indent=None) for row in result.rows]
        terminal.line("[" + ",\n ".join(rows) + "]")
    elif result.columns:
        terminal.table(result.columns, result.rows, digits=None)
        if terminal.width is not None:
            terminal.note(f"{len(result.rows)} row{'' if len(result.rows) == 1 else 's'}")
    return 0


def _answered(ledger: Ledger, query: str) -> Result:
    result = ledger.query(query)
    if result.columns or not query.startswith(("SELECT", "WITH", "(")):
        return result
    # Without rows the engine sends nothing at all, and a header is still owed.
    described = ledger.query(f"DESCRIBE TABLE ({query})").rows
    return replace(result, columns=tuple(row[0] for row in described), types=tuple(row[1] for row in described))
