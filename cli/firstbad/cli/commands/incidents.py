"""`firstbad incidents`."""

from __future__ import annotations

import argparse

from firstbad.cli.errors import CommandError
from firstbad.cli.session import Session

HELP = "incidents"
DESCRIPTION = "incidents"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `incidents`."""


def run(options: argparse.Namespace, session: Session) -> int:
    """Not there yet."""
    del options, session
    raise CommandError("not built yet")
