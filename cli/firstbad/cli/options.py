"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

DEFAULT_DB = Path("firstbad-ledger/db")
DEFAULT_JOURNAL = Path("firstbad-ledger/journal")


def add_db(parser: argparse.ArgumentParser) -> None:
    """`--db DIR`."""
    parser.add_argument(
        "--db",
        type=Path,
        metavar="DIR",
        help=f"folder of the ledger's database (default: FIRSTBAD_DB, else {DEFAULT_DB})",
    )


def add_journal(parser: argparse.ArgumentParser) -> None:
    """`--journal DIR`."""
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="DIR",
        help=f"folder that the training ranks write to (default: FIRSTBAD_JOURNAL, else {DEFAULT_JOURNAL})",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument(
        "--json",
        action="store_true",
        help='print strict JSON; numbers outside JSON are "NaN", "Infinity", "-Infinity", null is "not known"',
    )


def add_run(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The positional RUN."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?" if optional else None,
        help="run id, a unique beginning of one, or `latest`" + ("; all runs when left out" if optional else ""),
    )


def add_attempt(parser: argparse.ArgumentParser) -> None:
    """`--attempt N`."""
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="look at this start of the run (1 is the first) instead of all"
    )


def db_path(options: argparse.Namespace) -> Path:
    """The ledger that `options` name."""
    return _chosen(options.db, "FIRSTBAD_DB", DEFAULT_DB)


def journal_path(options: argparse.Namespace) -> Path:
    """The journal that `options` name."""
    return _chosen(options.journal, "FIRSTBAD_JOURNAL", DEFAULT_JOURNAL)


def _chosen(given: Path | None, variable: str, default: Path) -> Path:
    if given is not None:
        return given
    named = os.environ.get(variable)
    return Path(named) if named else default
