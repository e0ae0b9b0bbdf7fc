"""`firstbad collect`: load what the ranks write into the ledger."""

from __future__ import annotations

import argparse
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from threading import Event
from typing import TYPE_CHECKING, Any

from firstbad.cli.errors import CommandError
from firstbad.cli.options import add_db, add_journal, add_json, db_path, journal_path
from firstbad.cli.render import Terminal
from firstbad.cli.session import Session

if TYPE_CHECKING:
    from firstbad.collector.collect import Progress

HELP = "load the ranks' journals into the ledger, also while training runs"
DESCRIPTION = """\
Tails the journals of all ranks into the ledger's database, which is made and migrated as needed, until SIGINT or
SIGTERM; with --once it loads what is there and ends. Loaded journal segments are deleted. It may be killed at any
moment and started again: nothing is lost and nothing is counted twice. Only one process can open a ledger at a time,
so the other commands wait until it ends.
"""

_LOOK_SECONDS = 0.05
"""How long a signal may go unnoticed while nothing is done."""
_LINE_SECONDS = 10.0
"""Without a terminal, progress is one line per this many seconds, and only when something came."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `collect`."""
    add_journal(parser)
    add_db(parser)
    parser.add_argument("--once", action="store_true", help="load what is there, then end")
    parser.add_argument("--keep", action="store_true", help="leave loaded segments in the journal")
    add_json(parser)


def run(options: argparse.Namespace, session: Session) -> int:
    """Collect until told to stop, then say what was loaded."""
    try:
        from firstbad.collector.collect import collect
    except ImportError as error:
        raise CommandError(
            f"this command needs the collector's libraries, and {error.name} is not installed; "
            "pip install 'firstbad[collector]'"
        ) from error
    journal, db = journal_path(options), db_path(options)
    meter = _Meter(session.terminal, journal)
    with _stopped_by_signals() as (stop, received):
        try:
            counts = collect(journal, db, once=options.once, keep=options.keep, stop=stop, progress=meter.show)
        finally:
            meter.clear()
    if options.json:
        session.terminal.json(_as_json(counts, journal, db))
    else:
        session.terminal.line(f"{_summary(counts)} -> {db}")
        _warn(session.terminal, counts, db)
    # A service is ended by a signal; draining with --once was not finished when one came.
    return 128 + received[0] if options.once and received else 0


class _SignalFlag(Event):
    """
    An event that a signal handler may set: it takes no lock. Event.set in a handler that interrupts Event.wait on the
    same thread waits for the lock which that wait holds, for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told = False

    def set(self) -> None:
        self._told = True

    def is_set(self) -> bool:
        return self._told

    def wait(self, timeout: float | None = None) -> bool:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._told and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return self._told


@contextmanager
def _stopped_by_signals() -> Iterator[tuple[Event, list[int]]]:
    stop, received = _SignalFlag(), list[int]()

    def end(number: int, _: object) -> None:
        received.append(number)
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop, received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Meter:
    """The progress line: rewritten in place on a terminal, else a line now and then, on standard error."""

    def __init__(self, terminal: Terminal, journal: Path) -> None:
        self._err = terminal.err
        self._journal = journal
        self._in_place = self._err.isatty()
        self._shown = ""
        self._next = 0.0

    def show(self, counts: Progress) -> None:
        text = f"waiting for a journal in {self._journal}" if counts.waiting_for_journal else _summary(counts)
        if text == self._shown or (not self._in_place and time.monotonic() < self._next):
            return
        self._next = time.monotonic() + _LINE_SECONDS
        # A line that wraps could not be rewritten.
        short = text[: get_terminal_size().columns - 1]
        self._err.write(f"\r\x1b[K{short}" if self._in_place else f"{text}\n")
        self._err.flush()
        self._shown = text

    def clear(self) -> None:
        if self._in_place and self._shown:
            self._err.write("\r\x1b[K")
            self._err.flush()


def _summary(counts: Progress) -> str:
    names = {"step": "steps", "verdict": "verdicts", "evidence": "evidence", "testimony": "testimonies"}
    parts = [f"{counts.records[name]:,} {plural}" for name, plural in names.items() if counts.records[name]]
    others = sum(counts.records.values()) - sum(counts.records[name] for name in names)
    parts += [f"{others:,} other records"] if others else []
    parts += [f"{sum(counts.dead_letters.values()):,} dead letters"] if counts.dead_letters else []
    return f"loaded {', '.join(parts) or 'nothing new'} from {counts.segments} segments"


def _warn(terminal: Terminal, counts: Progress, db: Path) -> None:
    for name, why in counts.unreadable.items():
        terminal.note(f"could not read {name}: {why}")
    if counts.dead_letters:
        terminal.note(f"dead letters are kept in the ledger: firstbad sql --db {db} 'FROM dead_letters'")
    for part in counts.broken_parts:
        terminal.note(f"the engine found {part} damaged and set it aside; rows are missing in the ledger")


def _as_json(counts: Progress, journal: Path, db: Path) -> dict[str, Any]:
    return {
        "journal": str(journal),
        "db": str(db),
        "records": dict(counts.records),
        "dead_letters": dict(counts.dead_letters),
        "bytes_loaded": counts.bytes_loaded,
        "batches": counts.batches,
        "segments": counts.segments,
        "segments_deleted": counts.segments_deleted,
        "retries": counts.retries,
        "unreadable": counts.unreadable,
        "broken_parts": counts.broken_parts,
        "migrations": counts.migrations,
    }
