"""`firstbad verify`."""

from __future__ import annotations

import argparse

from firstbad.cli.errors import CommandError
from firstbad.cli.session import Session

HELP = "verify"
DESCRIPTION = "verify"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `verify`."""


def run(options: argparse.Namespace, session: Session) -> int:
    """Not there yet."""
    del options, session
    raise CommandError("not built yet")
