"""One append-only file of frames: made exclusively, written at a known offset, sealed when it ends well."""

from __future__ import annotations

import os
from pathlib import Path

from firstbad.schema.codec import encode_seal


class Segment:
    """
    A segment that only this process writes.

    A frame counts from the moment its last byte is written: a write that fails half-way leaves the offset where it
    was, so the next attempt goes over the torn bytes and a reader sees "not yet". `room` bytes are allocated at once,
    so that a full disk cannot stop what must be written; unused room reads as zero bytes and is cut off by `seal`.
    """

    def __init__(self, path: Path, *, room: int = 0) -> None:
        self.path = path
        self.size = 0
        self._room = room
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        if room:
            try:
                os.posix_fallocate(self._fd, 0, room)
            except OSError:
                # No room to be had (or a file system that has no such call): events still go out while space lasts.
                self._room = 0

    def fits(self, frame: bytes) -> bool:
        """Whether the frame, and a seal after it, lie inside the allocated room (always, without one)."""
        return not self._room or self.size + len(frame) + len(encode_seal()) <= self._room

    def write(self, frame: bytes) -> None:
        """
        Append a whole frame by write(2).

        Raises:
            OSError: it could not be written; the segment is as before.
        """
        view, offset = memoryview(frame), self.size
        while view:
            done = os.pwrite(self._fd, view, offset)
            view, offset = view[done:], offset + done
        self.size = offset

    def sync(self) -> None:
        """Bring what is written to the disk itself; waits for it."""
        os.fdatasync(self._fd)

    def seal(self) -> None:
        """End the segment: nothing follows, unused room is given back. A full disk leaves it unsealed but whole."""
        try:
            self.write(encode_seal())
            os.ftruncate(self._fd, self.size)
        except OSError:
            pass
        finally:
            os.close(self._fd)
