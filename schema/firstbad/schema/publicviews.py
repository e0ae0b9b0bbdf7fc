"""
The public views as their SQL files describe them: what a row is, and each column's type and meaning.

The engine keeps the same comments: DESCRIBE TABLE steps shows them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from firstbad.schema.errors import FirstbadError
from firstbad.schema.migrations import SqlFile, sql_files

_FILE_NAME = re.compile(r"\d\d_(\w+)\.sql")
_COLUMN = re.compile(r"^    (\w+) (.+?) COMMENT '((?:[^'\\]|''|\\.)*)',?$")
_INTERNAL = "internal_"


class ViewError(FirstbadError):
    """A shipped view file does not describe itself in the form that its readers need."""


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a public view: name, ClickHouse type, meaning."""

    name: str
    type: str
    description: str


@dataclass(frozen=True, slots=True)
class PublicView:
    """A view that users may rely on; `select` is the query that it stands for."""

    name: str
    description: str
    columns: tuple[ViewColumn, ...]
    select: str


@cache
def public_views() -> tuple[PublicView, ...]:
    """
    Every public view, each after those that it reads.

    Raises:
        ViewError: a file is not in the form of the others.
    """
    return tuple(parse_view(file) for file in sql_files("views") if not is_internal(file))


def is_internal(file: SqlFile) -> bool:
    """Whether the file's view is a building block of other views, which users may not rely on."""
    return _name(file).startswith(_INTERNAL)


def parse_view(file: SqlFile) -> PublicView:
    """
    The view that a file makes: comment lines, then CREATE with a described column list, then the query.

    Raises:
        ViewError: something of that is missing, or a line of the column list is in another form.
    """
    name = _name(file)
    head, found, rest = file.text.partition(f"CREATE OR REPLACE VIEW {name}\n(\n")
    listed, closed, select = rest.partition("\n) AS\n")
    if not found or not closed:
        raise ViewError(f"{file.name}: write 'CREATE OR REPLACE VIEW {name}', a list of columns, and ') AS'")
    description = " ".join(line.removeprefix("--").strip() for line in head.splitlines())
    if not description:
        raise ViewError(f"{file.name}: begin with comment lines that say what a row is")
    columns = []
    for line in listed.splitlines():
        match = _COLUMN.match(line)
        if match is None:
            raise ViewError(f"{file.name}: a column is written as \"    name Type COMMENT 'meaning',\", not {line!r}")
        meaning = re.sub(r"''|\\(.)", lambda found: found[1] or "'", match[3])
        columns.append(ViewColumn(match[1], match[2], meaning))
    return PublicView(name, description, tuple(columns), select.rstrip().removesuffix(";"))


def _name(file: SqlFile) -> str:
    match = _FILE_NAME.fullmatch(file.name)
    if match is None:
        raise ViewError(f"{file.name}: a view's file is named NN_name.sql, as 07_steps.sql")
    return match[1]
