"""A lane: the numbered segments of one kind of record of one process."""

from __future__ import annotations

from pathlib import Path

from firstbad.agent.journal.segment import Segment
from firstbad.schema.codec import encode_frame


class Lane:
    """
    Appends frames to the newest segment of a lane and turns to a new one when it is full.

    Only the writer thread calls it. `room` is allocated per segment (events), `limit` is the size at which a segment
    without room ends (steps).
    """

    def __init__(self, stem: Path, name: str, *, limit: int, room: int = 0) -> None:
        self._stem = stem
        self._name = name
        self._limit = limit
        self._room = room
        self._number = 0
        self._ended: dict[Path, int] = {}
        self.segment = self._next()

    def write(self, lines: list[bytes]) -> None:
        """
        Append the records as one frame.

        Raises:
            OSError: nothing of them was written.
        """
        frame = encode_frame(lines)
        if not self.segment.fits(frame) or self.segment.size >= self._limit:
            self._turn(frame)
        self.segment.write(frame)

    def bytes_held(self) -> int:
        """Bytes of this lane that still lie in the folder; ended segments leave when somebody has loaded them."""
        self._ended = {path: size for path, size in self._ended.items() if path.exists()}
        return self.segment.size + sum(self._ended.values())

    def end(self) -> None:
        """Seal the newest segment."""
        self.segment.seal()

    def _turn(self, frame: bytes) -> None:
        fresh = self._next(at_least=len(frame))
        self.segment.seal()
        self._ended[self.segment.path] = self.segment.size
        self.segment = fresh

    def _next(self, at_least: int = 0) -> Segment:
        path = self._stem.with_name(f"{self._stem.name}-{self._name}-{self._number:06d}.fbj")
        room = max(self._room, at_least + 64) if self._room else 0
        segment = Segment(path, room=room)
        self._number += 1
        return segment
