"""What could not become a row: kept with its exact bytes, its place and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "damaged_frame",  # a frame whose checksum or header is wrong
    "torn_frame",  # a frame that is cut short, with intact ones after it
    "foreign_bytes",  # bytes that never were a frame
    "zero_hole",  # zero bytes between frames
    "bad_record",  # a line that is no record, or breaks a field's rule
    "unknown_record",  # a record type or version newer than this firstbad
    "truncated_segment",  # a segment is now shorter than what was loaded from it
    "replaced_segment",  # another file stands under a segment's name
]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`file` is relative to the journal folder, `offset` the place of `data` in it; `detail` is for a person."""

    file: str
    offset: int
    reason: Reason
    detail: str
    data: bytes
