"""The door: reads the command line, runs one command, turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from itertools import takewhile
from types import ModuleType

from firstbad.cli.commands import collect, demo, incidents, migrate, runs, show, sql, verify
from firstbad.cli.ledger import Opener, open_store
from firstbad.cli.render import Terminal
from firstbad.cli.session import Session
from firstbad.schema import FirstbadError

COMMANDS: dict[str, ModuleType] = {
    "demo": demo,
    "collect": collect,
    "runs": runs,
    "incidents": incidents,
    "show": show,
    "verify": verify,
    "sql": sql,
    "migrate": migrate,
}
"""Each module has HELP, DESCRIPTION, configure(parser) and run(options, session) -> exit code."""

_EPILOG = """\
exit codes:
  0  done; for verify: the ledger is complete
  1  for verify: the ledger is not complete
  2  wrong usage, or the ledger or journal cannot be opened, or the query is wrong or refused
  130, 143  interrupted by SIGINT, SIGTERM

environment:
  FIRSTBAD_DB, FIRSTBAD_JOURNAL  defaults of --db and --journal
  NO_COLOR                       no colours, also on a terminal

JSON output (--json) is strict JSON. Numbers that JSON does not have are the strings "NaN", "Infinity" and
"-Infinity"; null always means "not known", never "bad". Times are UTC: 2026-01-31T09:30:00.000000Z.
In tables NaN is NaN, and what is not known is a dash.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--traceback",
        action="store_true",
        default=argparse.SUPPRESS,
        help="on an error, print the Python traceback too (for a bug report)",
    )
    parser = argparse.ArgumentParser(
        prog="firstbad",
        description="Finds the first bad step of a distributed PyTorch training run, and answers who, where and when.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"firstbad {version('firstbad')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for name, module in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            parents=[common],
            add_help=module is not demo,
        )
        module.configure(sub)
    return parser


def main(argv: Sequence[str] | None = None, *, opener: Opener = open_store) -> int:
    """
    Run one command and return its exit code.

    `opener` opens the ledger; a program that holds one open already may lend it. Output goes to sys.stdout, errors
    and progress to sys.stderr.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The demo reads its own options, so that it can be documented and tested as one piece.
    front = list(takewhile(lambda item: item.startswith("-"), arguments))
    rest: list[str] = []
    if arguments[len(front) : len(front) + 1] == ["demo"]:
        rest = arguments[len(front) + 1 :]
        arguments = [*front, "demo"]
    try:
        options = build_parser().parse_args(arguments)
    except SystemExit as end:
        # argparse has printed its help or its message.
        return end.code if isinstance(end.code, int) else 2
    options.rest = rest
    wants_traceback = getattr(options, "traceback", False)
    _open_closed_streams()
    terminal = Terminal.of(sys.stdout, sys.stderr, os.environ)
    try:
        code: int = COMMANDS[options.command].run(options, Session(terminal, opener))
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_left()
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return 130
    except FirstbadError as error:
        if wants_traceback:
            traceback.print_exc()
        terminal.error(str(error))
        return 2
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            terminal.error(f"cannot write: {error.strerror}")
            return 2
        # A bug: say so, and how to see more, instead of a page of frames.
        if wants_traceback:
            traceback.print_exc()
        terminal.error(
            f"unexpected {type(error).__name__}: {error}. This is a bug in firstbad; "
            "run it again with --traceback and report what it prints."
        )
        return 2
    return code


def _open_closed_streams() -> None:
    # `firstbad ... >&-`: python then has no stream at all.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives


def _reader_left() -> int:
    # `firstbad runs | head` is no failure. Python would complain at exit when it flushes a closed pipe.
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return 0
    return 0
