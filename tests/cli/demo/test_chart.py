"""The curve in text."""

from __future__ import annotations

import math

from firstbad.cli.demo.chart import draw


def test_a_curve_goes_from_its_highest_to_its_lowest_value() -> None:
    """A falling line, in plain signs."""
    assert draw([3, 2, 1], count=3, low=1, high=3, width=3, height=3, plain=True) == ["*  ", " * ", "  *"]


def test_what_is_not_finite_is_a_hole_and_the_future_is_empty() -> None:
    """NaN and steps that have not come yet leave their columns blank."""
    lines = draw([1.0, math.nan, 1.0, math.inf], count=8, low=0, high=1, width=8, height=2, plain=True)

    assert lines == ["* *     ", "        "]


def test_braille_has_the_asked_for_size_and_values_outside_stay_at_the_edge() -> None:
    """Two columns and four rows of dots a character."""
    lines = draw([9.0] * 4, count=4, low=0, high=1, width=2, height=2)

    assert lines == ["⠉⠉", "  "]
    assert draw([], count=4, low=0, high=1, width=2, height=1) == ["  "]
