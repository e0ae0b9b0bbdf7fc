"""Values as JSON, CSV and table cells: NaN, the infinities, null and empty text stay four different things."""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstbad.cli.encoding import UNKNOWN, cell_text, csv_lines, json_text, json_value


def strict(text: str) -> object:
    """Read JSON as a strict parser does, which knows no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_names_what_json_does_not_have() -> None:
    """NaN and the infinities are strings by their names, and null is null."""
    row = {"loss": math.nan, "norm": math.inf, "low": -math.inf, "scale": None, "lr": 0.001}

    assert strict(json_text(row)) == {
        "loss": "NaN",
        "norm": "Infinity",
        "low": "-Infinity",
        "scale": None,
        "lr": 0.001,
    }


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_every_value_is_strict_json(value: object) -> None:
    """Whatever comes out of the engine, a strict parser reads it, and a finite float comes back bit for bit."""
    back = strict(json_text(value))

    if isinstance(value, float) and math.isfinite(value):
        assert back == value


def test_times_are_utc_with_microseconds() -> None:
    """A time of another zone becomes UTC."""
    when = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=timezone(timedelta(hours=3)))

    assert json_value(when) == "2026-01-31T09:00:00.000005Z"
    assert cell_text(datetime(2026, 1, 31, 9, tzinfo=UTC)) == "2026-01-31T09:00:00Z"


def test_csv_keeps_null_empty_and_nan_apart() -> None:
    """Null is nothing, the empty text is two quotes, NaN is NaN."""
    lines = list(csv_lines(("a", "b", "c", "d"), [(None, "", math.nan, -math.inf)]))

    assert lines == ["a,b,c,d", ',"",NaN,-Infinity']


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=2, max_size=4))
def test_csv_text_comes_back(texts: list[str]) -> None:
    """Quotes, commas and line ends survive Python's own reader."""
    names = tuple(f"c{place}" for place in range(len(texts)))
    lines = "\r\n".join(csv_lines(names, [texts])) + "\r\n"

    if any("\0" in text for text in texts):
        return
    assert list(csv.reader(lines.splitlines(keepends=True)))[1:] == [texts] or any(
        sign in text for text in texts for sign in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, UNKNOWN),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (0.1 + 0.2, "0.30000000000000004"),
        (True, "yes"),
        ((), "(none)"),
        (("a", None), f"a, {UNKNOWN}"),
        ("", ""),
        ("two\nlines \x1b[31mred", "two\\nlines \\x1b[31mred"),
    ],
)
def test_cells_show_every_kind_of_value(value: object, text: str) -> None:
    """Each is told from the others, on one line, and no text of a run can steer the terminal."""
    assert cell_text(value) == text
