"""
The numbered SQL files that make a ledger's tables, and the files that make its public views.

Migrations only ever grow: a file that was released is never changed, a change is the next number. Views hold no data
and are re-created after every migration. No statement names a database: the connection's current one is meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

from firstbad.schema.errors import FirstbadError

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class MigrationError(FirstbadError):
    """The SQL files that firstbad ships are not a proper sequence: the installation is damaged."""


@dataclass(frozen=True, slots=True)
class Migration:
    """
    One numbered step of the tables. Its statements run in order and are safe to run twice.

    `name` is the file's name without .sql, as 0001_ledger; `checksum` is the SHA-256 of the file, in hexadecimal.
    """

    number: int
    name: str
    statements: tuple[str, ...]
    checksum: str


@dataclass(frozen=True, slots=True)
class SqlFile:
    """A shipped SQL file: its name, as runs.sql, and its text."""

    name: str
    text: str


@cache
def migrations() -> tuple[Migration, ...]:
    """
    Every migration that this firstbad ships, by number, from 1.

    Raises:
        MigrationError: the shipped files are not numbered 1, 2, 3 and so on.
    """
    return parse_migrations(sql_files("migrations"))


@cache
def views() -> tuple[str, ...]:
    """A CREATE OR REPLACE VIEW statement per view, each after the views it reads."""
    return tuple(statement for file in sql_files("views") for statement in split_statements(file.text))


def sql_files(folder: str) -> tuple[SqlFile, ...]:
    """The shipped files of `migrations` or `views`, by name."""
    found = (files("firstbad.schema") / "sql" / folder).iterdir()
    named = sorted((item for item in found if item.name.endswith(".sql")), key=lambda item: item.name)
    return tuple(SqlFile(item.name, item.read_text("utf-8")) for item in named)


def parse_migrations(sources: Sequence[SqlFile]) -> tuple[Migration, ...]:
    """
    Migrations out of files in order of name.

    Raises:
        MigrationError: a name is not NNNN_words.sql, a number is missing or doubled, or a file holds no statement.
    """
    found = []
    for expected, source in enumerate(sources, start=1):
        match = _FILE_NAME.fullmatch(source.name)
        if match is None:
            raise MigrationError(f"{source.name}: a migration is named NNNN_words.sql, as 0002_add_column.sql")
        number = int(match[1])
        if number != expected:
            raise MigrationError(
                f"{source.name}: number {expected} was expected here; numbers have no holes or doubles"
            )
        statements = split_statements(source.text)
        if not statements:
            raise MigrationError(f"{source.name}: holds no statement")
        checksum = sha256(source.text.encode("utf-8")).hexdigest()
        found.append(Migration(number, source.name.removesuffix(".sql"), statements, checksum))
    return tuple(found)


def split_statements(text: str) -> tuple[str, ...]:
    """Statements that end in a semicolon at the end of a line, without it; comment lines between them are dropped."""
    statements = []
    for part in re.split(r";[ \t]*(?:\n|$)", text):
        lines = part.splitlines()
        while lines and (not lines[0].strip() or lines[0].startswith("--")):
            del lines[0]
        if lines:
            statements.append("\n".join(lines).rstrip())
    return tuple(statements)
