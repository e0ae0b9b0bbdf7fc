"""`firstbad show`: one run, or one step of it."""

from __future__ import annotations

import argparse

from firstbad.cli.errors import NotFound
from firstbad.cli.ledger import Ledger
from firstbad.cli.options import add_attempt, add_db, add_json, add_run, db_path
from firstbad.cli.session import Session
from firstbad.cli.showrun import print_run, read_run
from firstbad.cli.showstep import print_step, read_step

HELP = "show a run, or one step of it"
DESCRIPTION = """\
Without STEP: the run's attempts, ranks, incidents and skip budget; under policy observe also what policy skip would
have done. With STEP: what every rank saw of that step; of a bad one also the verdict, the first offender, where it
was, the data it came from, and the tensors around it.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `show`."""
    add_run(parser)
    parser.add_argument("step", metavar="STEP", nargs="?", type=int, help="step of the run, from 0")
    add_attempt(parser)
    add_db(parser)
    add_json(parser)


def run(options: argparse.Namespace, session: Session) -> int:
    """Read, then print."""
    path = db_path(options)
    terminal = session.terminal
    with session.opener(path, purpose="show") as store:
        ledger = Ledger(store, path)
        run_id = ledger.resolve(options.run)
        attempts = _attempts(ledger, run_id, options.attempt)
        if options.step is None:
            shown = read_run(ledger, run_id, attempts)
        else:
            shown = read_step(ledger, run_id, attempts, options.step)
    if options.json:
        terminal.json(shown)
    elif options.step is None:
        print_run(terminal, shown, ["--db", str(options.db)] if options.db else [])
    else:
        print_step(terminal, shown)
    return 0


def _attempts(ledger: Ledger, run_id: str, wanted: int | None) -> list[dict[str, object]]:
    rows = ledger.dicts("SELECT * FROM runs WHERE run_id = {run:String} ORDER BY attempt", run=run_id)
    chosen = [row for row in rows if wanted is None or row["attempt"] == wanted]
    if not chosen:
        known = ", ".join(str(row["attempt"]) for row in rows)
        raise NotFound(f"run {run_id} has no attempt {wanted}; it has {known}")
    return chosen
