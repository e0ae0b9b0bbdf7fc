"""
The journal folder as a source: finds segments, also new ones, and reads each from where it was left.

    JOURNAL/<host>/<run>-<incarnation>-r<rank>-p<pid>-<lane>-<number>.fbj

Files with another ending are ignored. Whatever a .fbj holds, reading it gives lines and dead letters, never an error.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from firstbad.collector.deadletter import DeadLetter, Reason
from firstbad.collector.errors import JournalMissing
from firstbad.collector.segment import LONGEST_FRAME, Scan, describe, scan

SUFFIX = ".fbj"
READ_BYTES = 4 * 1024 * 1024
"""Bytes read from one segment at a time, unless a frame is longer."""
PIECE_BYTES = 1024 * 1024
"""A damaged span is kept in dead letters of at most this many bytes each."""
_SETTLED_NS = 100_000_000
_LOOK_AGAIN_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """One record's bytes and their offset in the segment."""

    data: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far a segment was read: everything before `offset` was handed out. Stored once that is durable."""

    file: str
    inode: int
    offset: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class Portion:
    """What one read of one segment gave. `position` may be stored when lines and letters are durable."""

    position: Position
    lines: list[Line] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    size: int = 0
    """Bytes read."""


class Segment:
    """
    One segment file and how far it was read. Reading the same bytes again gives the same lines and letters.

    Args:
        path: the file.
        name: its name in the ledger.
        position: how far it was loaded before; None for a new one.
        window: bytes to read at a time, unless a frame is longer.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        position: Position | None = None,
        *,
        window: int = READ_BYTES,
    ) -> None:
        self.path = path
        self._window = window
        self.position = position or Position(name, 0, 0, sealed=False)
        self._damaged_until = 0
        self._seen: tuple[int, ...] = ()
        self._looked_ns = 0

    def read(self) -> Portion | None:
        """
        The next portion; None when there is nothing new.

        Raises:
            OSError: the file cannot be read now.
        """
        if not self._may_have_news(os.stat(self.path, follow_symlinks=False)):
            return None
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return None
            letters = self._notice_replacement(status)
            portion = self._read_damage(fd) if self._damaged_until > self.position.offset else self._read_frames(fd)
        finally:
            os.close(fd)
        self.position = replace(portion.position, inode=status.st_ino)
        if portion.size or letters:
            self._seen = ()  # there may be more
            return replace(portion, position=self.position, letters=letters + portion.letters)
        return None

    def size(self) -> int:
        """Bytes in the file now; 0 when it is gone."""
        try:
            return os.stat(self.path, follow_symlinks=False).st_size
        except OSError:
            return 0

    def finished(self) -> bool:
        """Sealed, and everything in the file was handed out."""
        try:
            return self._is_finished(os.stat(self.path, follow_symlinks=False))
        except OSError:
            return False

    def _is_finished(self, status: os.stat_result) -> bool:
        here = self.position
        return here.sealed and (status.st_ino, status.st_size) == (here.inode, here.offset)

    def _may_have_news(self, status: os.stat_result) -> bool:
        """False when nothing was written since the last look. A file's mtime stands still for some ms, so a file that
        was written just before the look gets another one; and now and then every file does, clocks being clocks."""
        if self._is_finished(status):
            return False
        now = time.time_ns()
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == self._seen and now - self._looked_ns < _LOOK_AGAIN_NS:
            return False
        settled = now - status.st_mtime_ns > _SETTLED_NS
        self._seen, self._looked_ns = (seen, now) if settled else ((), now)
        return True

    def _notice_replacement(self, status: os.stat_result) -> list[DeadLetter]:
        here = self.position
        replaced = here.inode not in (0, status.st_ino)
        if not replaced and status.st_size >= here.offset:
            return []
        reason: Reason = "replaced_segment" if replaced else "truncated_segment"
        what = (
            f"inode {here.inode} became {status.st_ino}"
            if replaced
            else f"{status.st_size} bytes remain of the {here.offset} that were loaded"
        )
        self.position = Position(here.file, status.st_ino, 0, sealed=False)
        self._damaged_until = 0
        return [DeadLetter(here.file, here.offset, reason, f"{what}; read again from its start", b"")]

    def _read_frames(self, fd: int) -> Portion:
        """Frames from the position on, with the damage between them."""
        here = self.position
        for window in (self._window, LONGEST_FRAME):
            buffer, at_end = _read(fd, here.offset, window)
            found = scan(buffer, at_end=at_end, sealed=here.sealed)
            if found.consumed or at_end:
                break
        else:
            if here.sealed and (end := _end_of_zeros(fd, here.offset)):
                return Portion(replace(here, offset=end), size=end - here.offset)
            # A span longer than any frame: look for its end.
            self._damaged_until = self._next_frame(fd, here.offset + found.searched) or 0
            return self._read_damage(fd) if self._damaged_until else Portion(here)
        if found.damage:
            # A look during a write can show old bytes before new ones. Now that something intact was seen behind
            # them, the bytes before it are final.
            buffer, _ = _read(fd, here.offset, found.consumed)
            found = scan(buffer, at_end=at_end and found.consumed == len(buffer), sealed=here.sealed)
        return _portion(here, buffer, found)

    def _next_frame(self, fd: int, offset: int) -> int | None:
        """Where the next intact frame starts, or the end of a sealed file; None when it is not there yet."""
        while True:
            buffer, at_end = _read(fd, offset, LONGEST_FRAME)
            found = scan(buffer, at_end=at_end, sealed=self.position.sealed)
            if found.consumed:
                leads = bool(found.damage) and found.damage[0].start == 0
                return offset + (found.damage[0].end if leads else 0)
            if at_end:
                return None
            offset += found.searched

    def _read_damage(self, fd: int) -> Portion:
        """Dead letters for a span whose end is known, some pieces at a time."""
        here = self.position
        buffer, _ = _read(fd, here.offset, min(self._window, self._damaged_until - here.offset))
        position = replace(here, offset=here.offset + len(buffer))
        return Portion(position, letters=list(_pieces(here, buffer, 0, len(buffer))), size=len(buffer))


class JournalFolder:
    """
    All segments under a journal folder.

    Args:
        folder: the journal folder, or one host's folder in it.
        positions: how far segments were loaded before, by file.
    """

    def __init__(self, folder: Path, positions: dict[str, Position]) -> None:
        self.folder = folder
        self._positions = dict(positions)
        self._segments: dict[str, Segment] = {}
        self.unreadable: dict[str, str] = {}
        """Hosts' folders that the last look could not read, and why."""

    def discover(self) -> list[Segment]:
        """
        Every segment that is there now, in order of name; those seen before keep their place.

        Raises:
            JournalMissing: there is no such folder.
        """
        found: dict[str, Segment] = {}
        self.unreadable = {}
        for path, name in sorted(self._files()):
            found[name] = self._segments.get(name) or Segment(path, name, self._positions.get(name))
        self._segments = found
        return list(found.values())

    def _files(self) -> Iterator[tuple[Path, str]]:
        try:
            top = list(os.scandir(self.folder))
        except FileNotFoundError as error:
            raise JournalMissing(self.folder, "there is no such folder") from error
        except NotADirectoryError as error:
            raise JournalMissing(self.folder, "it is not a folder") from error
        except OSError as error:
            raise JournalMissing(self.folder, error.strerror or str(error)) from error
        for entry in top:
            if entry.is_dir(follow_symlinks=False):
                try:
                    inside = list(os.scandir(entry.path))
                except FileNotFoundError:
                    continue  # removed since it was listed
                except OSError as error:
                    self.unreadable[_name(entry.name)] = error.strerror or str(error)
                    continue
                yield from ((Path(item.path), _name(entry.name, item.name)) for item in inside if _is_segment(item))
            elif _is_segment(entry):
                yield Path(entry.path), _name(entry.name)


def _is_segment(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False)


def _name(*parts: str) -> str:
    return os.fsencode("/".join(parts)).decode("utf-8", "backslashreplace")


def _read(fd: int, offset: int, size: int) -> tuple[bytes, bool]:
    """Up to `size` bytes, and whether they reach the end of the file."""
    pieces: list[bytes] = []
    while size > 0:
        piece = os.pread(fd, size, offset)
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return b"".join(pieces), not os.pread(fd, 1, offset)


def _end_of_zeros(fd: int, offset: int) -> int | None:
    """The end of the file when only zero bytes lead there, else None."""
    at_end = False
    while not at_end:
        buffer, at_end = _read(fd, offset, READ_BYTES)
        if buffer.count(0) < len(buffer):
            return None
        offset += len(buffer)
    return offset


def _portion(here: Position, buffer: bytes, found: Scan) -> Portion:
    lines = []
    for frame in found.frames:
        at = here.offset + frame.end - len(frame.payload)
        for data in frame.payload.split(b"\n"):
            if data:
                lines.append(Line(data, at))
            at += len(data) + 1
    letters = [letter for span in found.damage for letter in _pieces(here, buffer, span.start, span.end)]
    position = replace(here, offset=here.offset + found.consumed, sealed=found.sealed)
    return Portion(position, lines, letters, found.consumed)


def _pieces(here: Position, buffer: bytes, start: int, end: int) -> Iterator[DeadLetter]:
    for at in range(start, end, PIECE_BYTES):
        data = buffer[at : min(at + PIECE_BYTES, end)]
        detail = f"{len(data)} bytes between intact frames"
        yield DeadLetter(here.file, here.offset + at, describe(data, end - at), detail, data)
