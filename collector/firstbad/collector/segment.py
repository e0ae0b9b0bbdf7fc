"""
Finds intact frames in a segment's bytes, whatever else lies between them. Pure: bytes in, pieces out.

The law: what cannot be read at the end of an unsealed segment is "not yet"; what cannot be read anywhere else, because
an intact frame or the seal follows, is damage, kept byte for byte, and its neighbours live. Zero bytes at the end are
room that the writer allocated and has not used.
"""

from __future__ import annotations

from dataclasses import dataclass

from firstbad.collector.deadletter import Reason
from firstbad.schema.codec import HEADER, MAGIC, MAX_PAYLOAD, Frame, FrameKind, find_frame, read_frame
from firstbad.schema.errors import FrameError

LONGEST_FRAME = HEADER.size + MAX_PAYLOAD
"""A buffer of this many bytes holds any frame that starts at its first byte, 16 MiB."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A span without an intact frame, followed by one or by the seal: offsets in the buffer."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scan:
    """
    What a buffer holds. `frames` (of records) and `damage` lie below `consumed`; from there on nothing is decided yet,
    except that no frame begins before `searched`, whatever follows the buffer.
    """

    frames: list[Frame]
    damage: list[Damage]
    consumed: int
    searched: int
    sealed: bool


def scan(buffer: bytes, *, at_end: bool, sealed: bool = False) -> Scan:
    """
    Split a buffer into frames and damage.

    Args:
        buffer: bytes of a segment, from the end of a frame on.
        at_end: the buffer reaches the end of the file.
        sealed: a seal was read before it.
    """
    frames: list[Frame] = []
    damage: list[Damage] = []
    position = searched = 0
    while position < len(buffer):
        frame, searched = _next_intact(buffer, position)
        if frame is None:
            break
        if frame.start > position:
            damage.append(Damage(position, frame.start))
        sealed = sealed or frame.kind is FrameKind.SEAL
        if frame.kind is FrameKind.RECORDS:
            frames.append(frame)
        position = searched = frame.end
    if sealed and at_end:
        if buffer.count(0, position) < len(buffer) - position:
            damage.append(Damage(position, len(buffer)))
        position = searched = len(buffer)
    return Scan(frames, damage, position, searched, sealed)


def _next_intact(buffer: bytes, position: int) -> tuple[Frame | None, int]:
    """The first intact frame that starts at or after `position`, and the place before which surely none starts."""
    undecided = -1
    candidate = find_frame(buffer, position)
    while candidate < len(buffer):
        following = find_frame(buffer, candidate + 1)
        head = buffer[candidate : candidate + HEADER.size]
        length = HEADER.unpack(head)[2] if len(head) == HEADER.size else 0
        if length <= MAX_PAYLOAD and candidate + HEADER.size + length <= following:
            try:
                frame = read_frame(buffer, candidate)
            except FrameError:
                pass
            else:
                if frame is not None:
                    return frame, candidate
        elif length <= MAX_PAYLOAD and following == len(buffer) and undecided < 0:
            # It runs beyond the buffer. One that runs into another's magic is no frame, since payloads are ASCII:
            # without that rule forged lengths would cost a checksum over megabytes at every candidate.
            undecided = candidate
        candidate = following
    # A magic may straddle the end of the buffer.
    return None, undecided if undecided >= 0 else max(position, len(buffer) - len(MAGIC) + 1)


def describe(damaged: bytes, length: int) -> Reason:
    """One closed word for a damaged span of `length` bytes, of which `damaged` are the first."""
    if damaged.count(0) == len(damaged):
        return "zero_hole"
    if not damaged.startswith(MAGIC):
        return "foreign_bytes"
    head = damaged[: HEADER.size]
    if len(head) < HEADER.size:
        return "torn_frame"
    claimed = HEADER.unpack(head)[2]
    return "torn_frame" if claimed <= MAX_PAYLOAD and HEADER.size + claimed > length else "damaged_frame"
