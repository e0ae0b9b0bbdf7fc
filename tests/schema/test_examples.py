"""The example files: one folder per record version, each file a record that every later firstbad must still read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from firstbad.schema import RECORD_TYPES, Record, decode_record, encode_record, record_name

EXAMPLES = Path(__file__).parents[2] / "schema/firstbad/schema/examples"
FILES = sorted(EXAMPLES.glob("*/v*/*.json"))


def _version(model: type[Record]) -> int:
    return int(model.model_fields["version"].default)


@pytest.mark.parametrize("path", FILES, ids=lambda path: "-".join(path.relative_to(EXAMPLES).with_suffix("").parts))
def test_an_example_is_read_and_written_back_alike(path: Path) -> None:
    """Field for field, NaN for NaN; its folder names its type and version."""
    record = decode_record(path.read_bytes())

    assert (record_name(record), f"v{_version(type(record))}") == path.relative_to(EXAMPLES).parts[:2]
    assert not record.model_extra
    told = json.loads(path.read_text("utf-8"))
    written = json.loads(encode_record(record))
    assert {name: repr(value) for name, value in told.items()} == {name: repr(written[name]) for name in told}
    # What was written beyond that is empty: an absent list.
    assert all(not value for name, value in written.items() if name not in told)


@pytest.mark.parametrize("model", RECORD_TYPES, ids=record_name)
def test_every_version_of_every_record_has_examples(model: type[Record]) -> None:
    """At least two: a sparse and a rich one."""
    for version in range(1, _version(model) + 1):
        assert len(list((EXAMPLES / record_name(model) / f"v{version}").glob("*.json"))) >= 2


@pytest.mark.parametrize("model", RECORD_TYPES, ids=record_name)
def test_the_examples_of_a_record_fill_every_field(model: type[Record]) -> None:
    """So that a reader sees each in use."""
    told: set[str] = set()
    for path in (EXAMPLES / record_name(model) / f"v{_version(model)}").glob("*.json"):
        told |= set(json.loads(path.read_text("utf-8")))
    assert set(model.model_fields) <= told


def test_examples_hold_every_value_that_is_not_finite() -> None:
    """NaN, +Inf and -Inf, where JSON codecs go wrong."""
    floats = [
        value
        for path in FILES
        for value in json.loads(path.read_text("utf-8")).values()
        if isinstance(value, float) and not math.isfinite(value)
    ]
    assert {repr(value) for value in floats} == {"nan", "inf", "-inf"}
