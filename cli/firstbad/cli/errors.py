"""
Errors of the command line, as a tree:

    FirstbadError
    └── CommandError     what was asked for cannot be done; the text says why and what to do
        └── NotFound     no such run, attempt or step in this ledger
"""

from __future__ import annotations

from firstbad.schema import FirstbadError


class CommandError(FirstbadError):
    """What was asked for cannot be done."""


class NotFound(CommandError):
    """No such run, attempt or step in this ledger."""
