"""
Values as text: one strict JSON encoding, one CSV encoding, one for tables.

NaN and the infinities are data and null is "not known", so no encoding here may fold them into each other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

UNKNOWN = "\N{EN DASH}"
"""How a table shows null."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def json_value(value: Any) -> Any:
    """
    `value` as what `json.dumps(allow_nan=False)` takes.

    NaN, +Inf and -Inf become the strings "NaN", "Infinity", "-Infinity"; null stays null; times are ISO 8601 in UTC
    with microseconds and a Z.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(value, datetime):
        return _time(value, "microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Sequence | set | frozenset):
        return [json_value(item) for item in value]
    return str(value)


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """`value` as a strict JSON document, ASCII, so that no terminal or locale can spoil it."""
    return json.dumps(json_value(value), indent=indent, allow_nan=False)


def csv_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """
    Header and rows as RFC 4180 lines without their line ends.

    Null is an empty field, the empty text is "" in quotes; NaN, Infinity and -Infinity stand as such; arrays and maps
    are JSON.
    """
    yield ",".join(_csv_field(name) for name in columns)
    for row in rows:
        yield ",".join(_csv_field(value) for value in row)


def cell_text(value: Any, *, digits: int | None = None) -> str:
    """
    `value` for a table cell, on one line, control characters escaped (a sample id must not steer a terminal).

    `digits` limits the significant digits of floats; None keeps the exact value.
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _float_text(value, digits)
    if isinstance(value, datetime):
        return _time(value, "microseconds" if value.microsecond else "seconds")
    if isinstance(value, str):
        return _visible(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{_visible(str(key))}={cell_text(item, digits=digits)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return ", ".join(cell_text(item, digits=digits) for item in value) if value else "(none)"
    return _visible(str(json_value(value)))


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    plain = json_value(value)
    if isinstance(plain, list | dict):
        text = json_text(value, indent=None)
    elif isinstance(plain, bool):
        text = "true" if plain else "false"
    else:
        text = str(plain)
    if text == "" or any(sign in text for sign in ',"\r\n') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _float_text(value: float, digits: int | None) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value) if digits is None else f"{value:.{digits}g}"


def _time(value: datetime, precision: str) -> str:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return aware.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _visible(text: str) -> str:
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)
