"""`firstbad migrate`: make a ledger, or bring its tables up to this version."""

from __future__ import annotations

import argparse

from firstbad.cli.options import add_db, add_json, db_path
from firstbad.cli.session import Session

HELP = "make a ledger, or bring its tables up to this version"
DESCRIPTION = (
    "Makes the ledger's folder and tables, or applies the migrations that it lacks and renews its views.\n"
    "Safe to run again. `firstbad collect` does the same by itself."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `migrate`."""
    add_db(parser)
    add_json(parser)


def run(options: argparse.Namespace, session: Session) -> int:
    """Migrate and tell what was done."""
    path = db_path(options)
    with session.opener(path, purpose="migrate", create=True) as store:
        done = store.migrate_report()
    if options.json:
        session.terminal.json({"db": str(path), "present": done.present, "applied": done.applied})
        return 0
    for name in done.applied:
        session.terminal.line(f"applied {name}")
    if not done.applied:
        session.terminal.line("nothing to apply")
    session.terminal.line(f"the ledger {path} is up to date ({len(done.present) + len(done.applied)} migrations)")
    return 0
