"""`firstbad demo`: a small real training, bare and guarded. It lives in firstbad.cli.demo."""

from __future__ import annotations

import argparse

from firstbad.cli.session import Session

HELP = "train a small model for real, watch it break, watch firstbad name the batch"
DESCRIPTION = "See `firstbad demo --help`."


def configure(parser: argparse.ArgumentParser) -> None:
    """The demo reads its own options."""
    del parser


def run(options: argparse.Namespace, session: Session) -> int:
    """Hand everything after `demo` to it."""
    del session
    from firstbad.cli.demo import command

    return int(command(options.rest))
