"""The engine's error messages, without what a person cannot use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from firstbad.cli.errors import CommandError

_NOISE = (
    re.compile(r"^(?:Code: \d+\. DB::Exception: |default: )+"),
    re.compile(r": In scope SELECT formatQuerySingleLine\(.*\)(?=\. \([A-Z_]+\)|$)", re.DOTALL),
    re.compile(r" \(version [^)]*\)"),
    re.compile(r" Expected one of: .*(?=\. \([A-Z_]+\)|$)", re.DOTALL),
    re.compile(r": While executing \w+"),
)
_VIEWS = "runs, ranks, steps, bad_steps, first_bad_steps, evidence, incidents, gaps, conflicts, dead_letters"
_HINTS = {
    "UNKNOWN_TABLE": f"Public tables: {_VIEWS}.",
    "UNKNOWN_IDENTIFIER": "`firstbad sql 'DESCRIBE TABLE steps'` lists the columns of a table.",
    "READONLY": "`firstbad sql` only reads the ledger.",
}


@contextmanager
def explained() -> Iterator[None]:
    """Turns a QueryError inside the block into a CommandError with a readable text and, where one helps, a hint."""
    from firstbad.collector.errors import QueryError

    try:
        yield
    except QueryError as error:
        raise CommandError(f"bad query: {readable(error.message)}") from error


def readable(message: str) -> str:
    """The engine's message without prefixes, versions and scopes that repeat the query, and with a hint."""
    text = message.strip()
    for pattern in _NOISE:
        text = pattern.sub("", text)
    hint = next((hint for name, hint in _HINTS.items() if f"({name})" in text), "")
    return f"{text} {hint}".strip()
