"""
Records as bytes: one frame holds one or a few records.

A frame is

    magic    4 bytes   FF 46 42 01        cannot occur inside a payload, which is ASCII
    kind     1 byte    1 = records, 2 = seal (no frame follows in this segment)
    length   4 bytes   little-endian, payload bytes, at most MAX_PAYLOAD
    crc      4 bytes   little-endian CRC-32C over kind, length and payload
    payload            records: JSON objects separated by newlines, ASCII, NaN / Infinity / -Infinity as such

JSON keeps a journal readable with standard tools; Python's and pydantic's codecs keep NaN, unlike orjson and msgspec,
which turn it into null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from crc32c import crc32c
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from firstbad.schema.errors import FrameError, RecordError, UnknownRecord
from firstbad.schema.records import RECORD_TYPES, AnyRecord, Record, record_name

MAGIC = b"\xffFB\x01"
HEADER = struct.Struct("<4sBII")
MAX_PAYLOAD = 16 * 1024 * 1024
"""A frame is never larger, 16 MiB; a larger length field is damage."""

_ADAPTER: TypeAdapter[Record] = TypeAdapter(AnyRecord)
_CURRENT = {record_name(model): model.model_fields["version"].default for model in RECORD_TYPES}


class FrameKind(IntEnum):
    """What a frame holds."""

    RECORDS = 1
    SEAL = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """One intact frame and where it lay: `start` and `end` are byte offsets in the buffer given."""

    kind: FrameKind
    payload: bytes
    start: int
    end: int


def encode_record(record: Record) -> bytes:
    """One record as an ASCII JSON object; nulls are left out, NaN stays NaN."""
    text = record.model_dump_json(exclude_none=True)
    return text.encode("ascii") if text.isascii() else _ascii(text)


def _ascii(text: str) -> bytes:
    # Inside JSON every non-ASCII character is inside a string, where \\uXXXX (UTF-16 units) may stand for it.
    # Lone surrogates cannot occur: pydantic refuses them.
    units = []
    for char in text:
        if char.isascii():
            units.append(char)
        else:
            raw = char.encode("utf-16-be")
            units += [f"\\u{raw[i]:02x}{raw[i + 1]:02x}" for i in range(0, len(raw), 2)]
    return "".join(units).encode("ascii")


def decode_record(line: bytes) -> Record:
    """
    One record from its JSON object.

    Raises:
        UnknownRecord: the type or version is newer than this firstbad.
        RecordError: it is not JSON, or a field breaks its rule; the text names field, value and rule.
    """
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        raise _explain(line, error) from error


def _explain(line: bytes, error: ValidationError) -> RecordError:
    try:
        head = from_json(line)
    except ValueError as cause:
        return RecordError(f"not JSON: {cause}")
    if not isinstance(head, dict):
        return RecordError(f"not a JSON object but {type(head).__name__}")
    name, version = head.get("record"), head.get("version")
    if name not in _CURRENT:
        return UnknownRecord(f"record type {name!r} is not known here (known: {', '.join(sorted(_CURRENT))})")
    if isinstance(version, int) and version > _CURRENT[name]:
        return UnknownRecord(
            f"{name} version {version} is newer than this firstbad reads ({_CURRENT[name]}); upgrade it"
        )
    problems = [
        f"{'.'.join(str(part) for part in item['loc'] if part != name)}: {item['msg']} (got {item['input']!r:.80})"
        for item in error.errors(include_url=False, include_context=False)[:5]
    ]
    return RecordError(f"{name}: " + "; ".join(problems))


def encode_frame(lines: Iterable[bytes]) -> bytes:
    """
    A frame of already encoded records.

    Raises:
        FrameError: the payload would exceed MAX_PAYLOAD.
    """
    return _frame(FrameKind.RECORDS, b"\n".join(lines))


def encode_seal() -> bytes:
    """The frame that ends a segment: after it nothing follows, and what is torn before it is damage."""
    return _frame(FrameKind.SEAL, b"")


def _frame(kind: FrameKind, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(
            f"payload of {len(payload)} bytes exceeds {MAX_PAYLOAD}; split the records over several frames"
        )
    return HEADER.pack(MAGIC, kind, len(payload), _crc(kind, payload)) + payload


def _crc(kind: int, payload: bytes | memoryview) -> int:
    return int(crc32c(payload, crc32c(struct.pack("<BI", kind, len(payload)))))


def read_frame(buffer: bytes, offset: int) -> Frame | None:
    """
    The frame that starts exactly at `offset`; None when its bytes are not all there yet.

    Raises:
        FrameError: what stands there can never become a frame, whatever follows.
    """
    head = buffer[offset : offset + HEADER.size]
    if not MAGIC.startswith(head[:4]) and head[:4] != MAGIC:
        raise FrameError(f"no frame at byte {offset}: starts with {head[:4].hex()} instead of {MAGIC.hex()}")
    if len(head) < HEADER.size:
        return None
    _, kind, length, crc = HEADER.unpack(head)
    if kind not in (FrameKind.RECORDS, FrameKind.SEAL) or length > MAX_PAYLOAD:
        raise FrameError(f"no frame at byte {offset}: kind {kind}, length {length} are out of range")
    start, end = offset + HEADER.size, offset + HEADER.size + length
    if end > len(buffer):
        return None
    payload = buffer[start:end]
    if _crc(kind, payload) != crc:
        raise FrameError(f"frame at byte {offset} is damaged: CRC-32C differs over {length} payload bytes")
    return Frame(FrameKind(kind), payload, offset, end)


def find_frame(buffer: bytes, offset: int) -> int:
    """Offset of the next possible frame start at or after `offset`; len(buffer) when there is none."""
    found = buffer.find(MAGIC, offset)
    return len(buffer) if found < 0 else found
