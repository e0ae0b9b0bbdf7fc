"""Reading journals in tests, by nothing but the codec."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from firstbad.schema import FrameError, Record, decode_record
from firstbad.schema.codec import FrameKind, find_frame, read_frame

_R = TypeVar("_R", bound=Record)


def records(journal: Path) -> list[Record]:
    """Every intact record under a journal folder, by rank and seq."""
    found: list[Record] = []
    for segment in sorted(journal.glob("*/*.fbj")):
        buffer, offset = segment.read_bytes(), 0
        while offset < len(buffer):
            try:
                frame = read_frame(buffer, offset)
            except FrameError:
                offset = find_frame(buffer, offset + 1)
                continue
            if frame is None:
                break
            if frame.kind is FrameKind.RECORDS:
                found += [decode_record(line) for line in frame.payload.split(b"\n")]
            offset = frame.end
    return sorted(found, key=lambda record: (record.incarnation, record.rank, record.seq))


def of_type(journal: Path, model: type[_R]) -> list[_R]:
    """The records of one type."""
    return [record for record in records(journal) if isinstance(record, model)]
