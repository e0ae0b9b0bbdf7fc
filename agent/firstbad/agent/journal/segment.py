"""One append-only file of frames: made exclusively, written at a known offset, sealed when it ends well."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from firstbad.schema.codec import encode_seal

SEAL = encode_seal()


class Segment:
    """
    A segment that only this process writes.

    A frame counts from the moment its last byte is written. A write that fails half-way is cut off again, so a reader
    sees whole frames and then nothing yet. `room` bytes are allocated at once, so that a full disk cannot stop what
    must be written; unused room reads as zero bytes and is given back by `seal`. Where no room is to be had, frames
    are written as long as there is space, and room is asked for again with each.
    """

    def __init__(self, path: Path, *, room: int = 0) -> None:
        self.path = path
        self.size = 0
        self._wanted = room
        self._room = 0
        self._listed = False
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._allocate(0)

    @property
    def bytes_taken(self) -> int:
        """Bytes that the file takes, allocated room included."""
        return max(self.size, self._room)

    def fits(self, frame: bytes) -> bool:
        """Whether the frame, and a seal after it, lie inside the allocated room (always, without one)."""
        return not self._room or self.size + len(frame) + len(SEAL) <= self._room

    def write(self, frame: bytes) -> None:
        """
        Append a whole frame by write(2).

        Raises:
            OSError: it could not be written; the segment is as before.
        """
        if not self._room:
            self._allocate(len(frame))
        view, offset = memoryview(frame), self.size
        try:
            while view:
                done = os.pwrite(self._fd, view, offset)
                view, offset = view[done:], offset + done
        except OSError:
            self._cut()
            raise
        self.size = offset

    def sync(self) -> None:
        """Bring what is written, and the file's name, to the disk itself; waits for it."""
        os.fdatasync(self._fd)
        if not self._listed:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._listed = True

    def seal(self) -> None:
        """End the segment: nothing follows, unused room is given back. A full disk leaves it unsealed but whole."""
        self._wanted = 0
        with suppress(OSError):
            # Cut first: whoever sees the seal must find nothing behind it.
            os.ftruncate(self._fd, self.size + len(SEAL))
            self.write(SEAL)
        self._room = 0

    def close(self) -> None:
        """Give the file back to the system; after `seal`."""
        os.close(self._fd)

    def _allocate(self, length: int) -> None:
        """Ask for room, for a frame of `length` bytes at least; without it things go on as long as there is space."""
        if not self._wanted:
            return
        room = max(self._wanted, self.size + length + len(SEAL))
        try:
            os.posix_fallocate(self._fd, 0, room)
        except OSError:
            return
        self._room = room

    def _cut(self) -> None:
        # Torn bytes inside the room are written over by the next frame; cutting them off would give the room away.
        if self._room:
            return
        with suppress(OSError):
            os.ftruncate(self._fd, self.size)
