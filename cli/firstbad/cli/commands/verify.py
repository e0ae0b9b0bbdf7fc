"""`firstbad verify`: is the ledger of a run complete?"""

from __future__ import annotations

import argparse

from firstbad.cli.completeness import Attempt, examine
from firstbad.cli.errors import NotFound
from firstbad.cli.ledger import Ledger
from firstbad.cli.options import add_attempt, add_db, add_json, add_run, db_path
from firstbad.cli.render import Terminal
from firstbad.cli.session import Session

HELP = "check that the ledger of a run is complete"
DESCRIPTION = """\
Looks for everything that can be missing or contradictory: ranks without a record, holes in a rank's sequence, ranks
without an end or behind their peers, ranks that disagree about a step, bad steps without a verdict, different content
under one id, bytes that could not be read. Says plainly whether the ledger is complete.

exit codes: 0 complete, 1 not complete, 2 could not be checked
"""

_MOST_LINES = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `verify`."""
    add_run(parser)
    add_attempt(parser)
    add_db(parser)
    add_json(parser)


def run(options: argparse.Namespace, session: Session) -> int:
    """Examine and report; 0 complete, 1 not."""
    path = db_path(options)
    with session.opener(path, purpose="verify") as store:
        ledger = Ledger(store, path)
        run_id = ledger.resolve(options.run)
        attempts = examine(ledger, run_id, options.attempt)
    if not attempts:
        raise NotFound(f"run {run_id} has no attempt {options.attempt}; `firstbad runs` lists them")
    complete = all(attempt.complete for attempt in attempts)
    if options.json:
        session.terminal.json(
            {"run_id": run_id, "complete": complete, "attempts": [attempt.as_dict() for attempt in attempts]}
        )
    else:
        for attempt in attempts:
            _report(session.terminal, attempt)
        session.terminal.line(f"the ledger of {run_id} is {'complete' if complete else 'NOT complete'}")
    return 0 if complete else 1


def _report(terminal: Terminal, attempt: Attempt) -> None:
    counts = {"rank": attempt.ranks, "step": attempt.steps, "record": attempt.records}
    size = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
    terminal.heading(f"{attempt.run_id}, attempt {attempt.attempt}: {size}")
    if attempt.complete:
        terminal.line("  nothing missing, nothing contradictory")
    shown = attempt.findings if terminal.width is None else attempt.findings[:_MOST_LINES]
    for finding in shown:
        terminal.line(f"  {finding.check}: {finding.text}")
    if len(shown) < len(attempt.findings):
        terminal.line(f"  and {len(attempt.findings) - len(shown)} more; --json or a pipe shows all")
