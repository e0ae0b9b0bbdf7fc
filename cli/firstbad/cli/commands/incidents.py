"""`firstbad incidents`: runs of bad steps, opened by a first bad step."""

from __future__ import annotations

import argparse
from typing import Any

from firstbad.cli.ledger import Ledger, empty_text
from firstbad.cli.options import add_db, add_json, add_run, db_path
from firstbad.cli.render import Terminal
from firstbad.cli.session import Session

HELP = "list incidents: bad steps that belong together"
DESCRIPTION = """\
One line per incident: bad steps of one attempt with fewer than 10 good steps between them. Rank, micro step, stage
and module are those of its first bad step; `firstbad show RUN STEP` tells the rest.
"""

_QUERY = """
SELECT * FROM incidents WHERE {run:String} = '' OR run_id = {run:String} ORDER BY run_id, attempt, first_step
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `incidents`."""
    add_run(parser, optional=True)
    add_db(parser)
    add_json(parser)


def run(options: argparse.Namespace, session: Session) -> int:
    """Print them."""
    path = db_path(options)
    with session.opener(path, purpose="incidents") as store:
        ledger = Ledger(store, path)
        wanted = ledger.resolve(options.run) if options.run else ""
        rows = ledger.dicts(_QUERY, run=wanted)
        if not rows and not ledger.dicts("SELECT 1 AS one FROM runs LIMIT 1"):
            session.terminal.note(f"firstbad: {empty_text(path)}")
        elif not rows:
            session.terminal.note(f"no bad step in {f'run {wanted}' if wanted else f'the ledger {path}'}")
    if options.json:
        session.terminal.json(rows)
    elif rows:
        print_incidents(session.terminal, rows)
    return 0


def print_incidents(terminal: Terminal, rows: list[dict[str, Any]]) -> None:
    """The table of incidents."""
    names = ("run_id", "attempt", "steps", "bad", "skipped", "kind", "stage", "rank", "micro step", "module", "shards")
    terminal.table(
        names,
        [
            (
                row["run_id"],
                row["attempt"],
                str(row["first_step"])
                if row["first_step"] == row["last_step"]
                else f"{row['first_step']}-{row['last_step']}",
                row["bad_steps"],
                row["skipped"],
                row["kind"],
                row["first_bad_stage"],
                row["rank"],
                row["micro_step"],
                row["module"],
                row["shard_id"] or None,
            )
            for row in rows
        ],
    )
