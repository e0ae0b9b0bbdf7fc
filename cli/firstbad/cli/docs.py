"""Writes docs/cli.md from the parser: `python -m firstbad.cli.docs`. A test keeps the page fresh."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from firstbad.cli.main import COMMANDS, build_parser

PAGE = Path("docs/cli.md")

_HEAD = """\
# The command line

Written by `python -m firstbad.cli.docs`; do not edit.

A ledger is read by one process at a time: while `firstbad collect` runs, the other commands say that it does, and by
which process. Wherever RUN is asked for, a unique beginning of the run id or `latest` will do.
"""


def page() -> str:
    """The whole page: the help of `firstbad` and of every command but the demo, which explains itself."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        parser = build_parser()
        parts = [_HEAD, _block("firstbad", parser)]
        action = next(item for item in parser._actions if isinstance(item, argparse._SubParsersAction))
        parts += [_block(f"firstbad {name}", action.choices[name]) for name in COMMANDS if name != "demo"]
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join(parts)


def _block(title: str, parser: argparse.ArgumentParser) -> str:
    return f"## {title}\n\n```\n{parser.format_help().rstrip()}\n```\n"


def main() -> None:
    """Write the page below the current folder, the root of the repository."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
