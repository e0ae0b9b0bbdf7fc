"""
The guard of `firstbad sql`: what a person types may read the ledger and nothing else.

The engine's read-only session is the first fence. It still lets a SELECT write files (INTO OUTFILE) or read them
(the function file, under any spelling), lets DESCRIBE open a source, and runs some SYSTEM statements. So the engine
itself first writes the query in its normal form, which resolves comments, escapes and quoting and runs nothing; the
rules below look at that form, and that form is what runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from firstbad.cli.errors import CommandError
from firstbad.cli.ledger import Ledger

FIRST_WORDS = ("SELECT", "WITH", "SHOW", "DESCRIBE", "EXPLAIN", "EXISTS")
"""Statements that may run."""

_TABLE_FUNCTIONS = frozenset({
    "format", "generaterandom", "generateseries", "generate_series", "merge", "null", "numbers", "numbers_mt",
    "primes", "values", "view", "zeros", "zeros_mt",
})  # fmt: skip
"""Table functions that compute, or read the ledger. Others open files, hosts or programs, or run text as a query."""

_FORBIDDEN = {
    "file": "the function file reads any file",
    "outfile": "INTO OUTFILE writes files; redirect the output instead",
    "infile": "FROM INFILE reads files",
    "stack_trace": "system.stack_trace is about the engine, not the ledger",
    "disks": "system.disks is about the machine, not the ledger",
    "named_collections": "system.named_collections may hold secrets",
}
"""Words that may stand nowhere as a name: functions can be handed to others by name, without a parenthesis."""

_BEFORE_A_TABLE = ("from", "join", "table")

_NETWORK_FUNCTION = re.compile(r"ai(Classify|Embed|Extract|Filter|Generate|Redact|Similarity|Translate)", re.IGNORECASE)

_TOKEN = re.compile(
    r"""
      (?P<space> \s+ )
    | (?P<text> '(?:[^'\\]|\\.|'')*' )
    | (?P<quoted> "(?:[^"\\]|\\.|"")*" | `(?:[^`\\]|\\.|``)*` )
    | (?P<word> [^\W\d]\w* )
    | (?P<mark> . )
    """,
    re.VERBOSE | re.DOTALL,
)


class Refused(CommandError):
    """The query is not one that only reads the ledger."""

    def __init__(self, why: str) -> None:
        super().__init__(f"refused: {why}. `firstbad sql` only reads the ledger.")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def name(self) -> str:
        """The name that this token spells, in lower case; empty for anything but a name."""
        if self.kind == "word":
            return self.text.lower()
        return self.text[1:-1].lower() if self.kind == "quoted" else ""


def reading_query(ledger: Ledger, sql: str) -> str:
    """
    The engine's normal form of `sql`, when it only reads.

    Raises:
        Refused: it would do something else.
        QueryError: it is no query.
    """
    if not sql.strip():
        raise CommandError("the query is empty; try: firstbad sql 'SELECT * FROM runs'")
    normal = str(ledger.query("SELECT formatQuerySingleLine({q:String})", q=sql.strip().rstrip(";")).rows[0][0])
    check_reading(normal, _engine_table_functions(ledger))
    return normal


def check_reading(normal: str, table_functions: frozenset[str]) -> None:
    """
    Refuse a query in normal form that does not only read; `table_functions` are those of the engine, lower case.

    Raises:
        Refused: with the rule that it breaks.
    """
    tokens = list(_tokens(normal))
    first = next((token.text.upper() for token in tokens if token.text != "("), "")
    if first not in FIRST_WORDS:
        raise Refused(f"{first or 'this'} is not a reading statement; those are {', '.join(FIRST_WORDS)}")
    if first == "EXPLAIN" and len(tokens) > 1 and tokens[1].name in ("ast", "table", "current"):
        raise Refused(f"EXPLAIN {tokens[1].text} is not needed here; EXPLAIN, EXPLAIN PLAN and EXPLAIN PIPELINE work")
    sources = table_functions - _TABLE_FUNCTIONS
    for place, token in enumerate(tokens):
        following = tokens[place + 1] if place + 1 < len(tokens) else _Token("mark", "")
        if token.name in _FORBIDDEN:
            raise Refused(_FORBIDDEN[token.name])
        if token.name and _NETWORK_FUNCTION.fullmatch(token.name):
            raise Refused(f"{token.text} calls a service on the network")
        if token.name in sources and following.text == "(":
            raise Refused(f"{token.text}(...) opens something outside the ledger, or runs text as a query")
        if token.kind == "quoted" and "/" in token.name and place and tokens[place - 1].name in _BEFORE_A_TABLE:
            raise Refused(f"{token.text} is a file, not a table of the ledger")


def _tokens(normal: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(normal):
        if found.lastgroup != "space":
            yield _Token(str(found.lastgroup), found.group())


def _engine_table_functions(ledger: Ledger) -> frozenset[str]:
    return frozenset(str(row[0]).lower() for row in ledger.query("SELECT name FROM system.table_functions").rows)
