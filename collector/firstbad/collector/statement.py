"""What a reader may run: one statement that only reads."""

from __future__ import annotations

import re
from itertools import pairwise

from firstbad.collector.errors import QueryError

READING = ("SELECT", "WITH", "FROM", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS")
"""First words of the statements that a reader may run."""

_TOKEN = re.compile(
    r"""
      (?P<skip> --[^\n]* | \#[!\ ][^\n]* | /\*.*?\*/ | \s+ )
    | (?P<quoted> '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`\\]|\\.|``)*` )
    | (?P<word> \w+ )
    | (?P<mark> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def single_statement(sql: str) -> str:
    """
    The one reading statement in `sql`, without its trailing semicolon.

    The engine runs several statements and glues their results together; and its read-only mode still lets some
    statements write files. Both are refused here.

    Raises:
        QueryError: it is empty, or several statements, or not a reading one, or it sets a FORMAT of its own.
    """
    tokens = [
        (match.group(), match.start(), match.end()) for match in _TOKEN.finditer(sql) if match.lastgroup != "skip"
    ]
    while tokens and tokens[-1][0] == ";":
        tokens.pop()
    if not tokens:
        raise QueryError(sql, "the query is empty; try: SELECT * FROM runs")
    texts = [text for text, _, _ in tokens]
    if ";" in texts:
        raise QueryError(sql, "more than one statement; run them one at a time")
    first = next((text for text in texts if text != "("), "(").upper()
    if first not in READING:
        raise QueryError(
            sql, f"{first} is not a reading statement; the ledger can be read with {', '.join(READING)}, never changed"
        )
    if len(texts) > 2 and texts[-2].upper() == "FORMAT":
        raise QueryError(sql, f"leave FORMAT {texts[-1]} out of the query; the output format is an option beside it")
    if any(a.upper() == "INTO" and b.upper() == "OUTFILE" for a, b in pairwise(texts)):
        raise QueryError(sql, "leave INTO OUTFILE out of the query; redirect the output instead")
    return sql[tokens[0][1] : tokens[-1][2]]
