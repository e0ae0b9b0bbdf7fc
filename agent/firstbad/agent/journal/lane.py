"""A lane: the numbered segments of one kind of record of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firstbad.agent.journal.segment import SEAL, Segment


class Lane:
    """
    Appends frames to the newest segment of a lane and turns to a new one when it is full.

    Only the writer thread calls it.

    Args:
        stem: folder and first part of the segments' names.
        name: `events` or `steps`.
        limit: size in bytes at which a segment ends.
        room: bytes allocated for a segment; a frame that does not fit goes to the next one.
        ended: is given every segment that was sealed, to sync and close it.

    Raises:
        OSError: the first segment cannot be made.
    """

    def __init__(self, stem: Path, name: str, *, limit: int, room: int = 0, ended: Callable[[Segment], None]) -> None:
        self._stem = stem
        self._name = name
        self._limit = limit
        self._room = room
        self._hand_over = ended
        self._number = 0
        self._ended: dict[Path, int] = {}
        self._ended_bytes = 0
        self.segment = self._next()

    def write(self, frame: bytes) -> None:
        """
        Append a frame; when this returns, it survives the end of this process.

        Raises:
            OSError: nothing of it was written.
        """
        if not self.segment.fits(frame) or self.segment.size >= self._limit:
            self._turn(frame)
        self.segment.write(frame)

    def bytes_held(self) -> int:
        """Bytes of this lane in the folder, at most: as of the last `recount`."""
        return self.segment.bytes_taken + self._ended_bytes

    def recount(self) -> None:
        """Look which ended segments still lie there; they leave when somebody has loaded them."""
        self._ended = {path: size for path, size in self._ended.items() if path.exists()}
        self._ended_bytes = sum(self._ended.values())

    def end(self) -> None:
        """Seal the newest segment; nothing may be written afterwards."""
        self.segment.seal()
        self._hand_over(self.segment)

    def _turn(self, frame: bytes) -> None:
        fresh = self._next(at_least=len(frame))
        old, self.segment = self.segment, fresh
        old.seal()
        self._ended[old.path] = old.size
        self._ended_bytes += old.size
        self._hand_over(old)

    def _next(self, at_least: int = 0) -> Segment:
        room = max(self._room, at_least + len(SEAL)) if self._room else 0
        try:
            segment = Segment(self._stem.with_name(f"{self._stem.name}-{self._name}-{self._number:06d}.fbj"), room=room)
        except FileExistsError:
            self._number += 1  # never write into a file that is somebody else's; the next try takes the next name
            raise
        self._number += 1
        return segment
