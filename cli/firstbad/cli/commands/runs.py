"""`firstbad runs`: every start of every run in the ledger."""

from __future__ import annotations

import argparse

from firstbad.cli.ledger import Ledger, empty_text
from firstbad.cli.options import add_db, add_json, db_path
from firstbad.cli.session import Session

HELP = "list the runs in the ledger"
DESCRIPTION = "One line per start (attempt) of a run, the latest last."

_QUERY = """
SELECT * FROM runs ORDER BY started_ts, run_id, attempt
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `runs`."""
    add_db(parser)
    add_json(parser)


def run(options: argparse.Namespace, session: Session) -> int:
    """Print them."""
    path = db_path(options)
    with session.opener(path, purpose="runs") as store:
        rows = Ledger(store, path).dicts(_QUERY)
    terminal = session.terminal
    if not rows:
        terminal.note(f"firstbad: {empty_text(path)}")
    if options.json:
        terminal.json(rows)
    elif rows:
        names = ("run_id", "attempt", "started", "ranks", "steps", "bad", "skipped", "policy", "ended")
        terminal.table(
            names,
            [
                (
                    row["run_id"],
                    row["attempt"],
                    row["started_ts"].replace(microsecond=0) if row["started_ts"] else None,
                    f"{row['ranks']} of {row['world_size'] if row['world_size'] is not None else '?'}",
                    row["steps"],
                    row["bad_steps"],
                    row["skipped_steps"],
                    row["policy"],
                    row["outcome"] or "open",
                )
                for row in rows
            ],
        )
    return 0
