"""
Field types of records: each carries its range (checked by pydantic) and its ClickHouse column type.

The table DDL is tested against these, so a type is stated once. Integers are bounded here because ClickHouse wraps
out-of-range integers silently. Floats take NaN, +Inf and -Inf: a bad value is data. `None` means "not known".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True)
class Column:
    """The ClickHouse type of a field, without Nullable."""

    type: str


Text = Annotated[str, Field(max_length=16_384), Column("String")]
"""UTF-8 text, at most 16384 characters."""
Name = Annotated[str, Field(max_length=1_024), Column("String")]
"""A short name: module, parameter, host, path."""
RunId = Annotated[str, Field(min_length=1, max_length=200), Column("LowCardinality(String)")]
"""Stable over restarts of one job, 1 to 200 characters."""
Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$"), Column("String")]
"""128 bits, as 32 lower-case hexadecimal digits. Text in SQL: a FixedString reaches most clients as bytes."""
Incarnation = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$"), Column("LowCardinality(String)")]
"""As Hex32; few of them, each in very many rows."""
Label = Annotated[str, Field(max_length=64), Column("LowCardinality(String)")]
"""One word out of a small set (the set is in vocabulary.py where it is closed)."""
UInt8 = Annotated[int, Field(ge=0, le=2**8 - 1), Column("UInt8")]
UInt32 = Annotated[int, Field(ge=0, le=2**32 - 1), Column("UInt32")]
UInt64 = Annotated[int, Field(ge=0, le=2**64 - 1), Column("UInt64")]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), Column("Int64")]
Float = Annotated[float, Column("Float64")]
"""IEEE float64; NaN, +Inf and -Inf are values."""
Flag = Annotated[bool, Column("Bool")]
Micros = Annotated[int, Field(ge=0, le=4_102_444_800_000_000), Column("DateTime64(6, 'UTC')")]
"""Microseconds since 1970-01-01 UTC, up to the year 2100."""
Names = Annotated[tuple[Name, ...], Field(max_length=64), Column("Array(String)")]
"""At most 64 short names."""
Dims = Annotated[tuple[UInt64, ...], Field(max_length=64), Column("Array(UInt64)")]
"""A tensor's shape."""
