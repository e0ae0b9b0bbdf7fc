"""The writer thread: takes entries off the inbox, makes records of them, and puts frames into the lanes."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from firstbad.agent.journal.encoding import Encoder, frames
from firstbad.agent.journal.gaps import Gaps
from firstbad.agent.journal.inbox import Entry, Inbox, Item, Ticket
from firstbad.agent.journal.lane import Lane
from firstbad.agent.journal.signals import block_signals
from firstbad.agent.journal.syncer import Syncer
from firstbad.schema import Gap, GapReason

logger = logging.getLogger("firstbad.agent")

POLL_SECONDS = 0.02
"""Longest time that a row waits for the writer: well under the 50 ms that are promised."""
SLICE = 32
"""Rows encoded at once; then the writer sleeps, so that a backlog does not keep the interpreter lock from training."""
BREATH_SECONDS = 0.001
"""Sleep between slices. Zero would often win the lock back before the training thread has woken up."""
RETRY_SECONDS = 0.1
"""Pause before an event that could not be written is tried again."""
RECOUNT_SECONDS = 1.0
"""At its bound, the journal looks this often whether somebody has loaded and deleted segments."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Sizes in bytes.

    Attributes:
        held: what all segments in the folder may take before rows stop.
        segment: size at which a segment ends.
        room: allocated at once for events.
    """

    held: int
    segment: int
    room: int


class Writer:
    """
    Owns both lanes. `start` begins the thread, `stop` drains, seals and ends it.

    Raises:
        OSError: the first segments cannot be made.
    """

    def __init__(self, stem: Path, limits: Limits, inbox: Inbox, gaps: Gaps, encoder: Encoder) -> None:
        self.written = 0
        self._limits = limits
        self._inbox = inbox
        self._gaps = gaps
        self._encoder = encoder
        self._told: set[str] = set()
        self._syncer = Syncer(lambda error: self._tell("sync", "written, but not forced to the disk (%s)", error))
        retire = self._syncer.retire
        self._events = Lane(stem, "events", limit=limits.segment, room=limits.room, ended=retire)
        self._rows = Lane(stem, "steps", limit=limits.segment, ended=retire)
        # Frames of events, each with its number of records and with whom to tell when it is written.
        self._pending: deque[tuple[bytes, int, list[Ticket]]] = deque()
        self._retry_at = 0.0
        self._recounted_at = 0.0
        self._stopping = False
        self._last: Sequence[Item] = ()
        self._thread = threading.Thread(target=self._run, name="firstbad-journal", daemon=True)

    def start(self) -> None:
        """Begin writing."""
        self._syncer.start()
        self._thread.start()

    def stop(self, last: Sequence[Item], wait_seconds: float) -> bool:
        """Write everything, admit what was dropped, write `last`, seal, end; whether that was done in time."""
        deadline = time.monotonic() + wait_seconds
        self._last = last
        self._stopping = True
        self._inbox.ring()
        self._thread.join(wait_seconds)
        if self._thread.is_alive():
            return False
        self._syncer.end(min(1.0, max(0.0, deadline - time.monotonic())))
        return True

    def _run(self) -> None:
        block_signals()
        while True:
            stopping = self._stopping
            try:
                done = self._work(everything=stopping)
            except Exception as error:
                self._tell("writer", "the journal's writer failed (%r); it goes on with what follows", error)
                done = False
            if done and stopping:
                break
            self._inbox.listen(POLL_SECONDS)
        self._events.end()
        self._rows.end()

    def _work(self, *, everything: bool) -> bool:
        """Write what waits, events first; whether nothing is left."""
        while True:
            self._take_events()
            self._write_pending()
            self._write_rows()
            self._write_pending()
            if self._pending:
                return False
            drained = self._inbox.empty()
            if holes := self._gaps.take(everything=everything and drained):
                self._inbox.put_event([(Gap, hole) for hole in holes])
            elif not drained:
                time.sleep(0 if everything else BREATH_SECONDS)  # at the end the script waits for us
            elif everything and self._last:
                self._inbox.put_event(self._last)
                self._last = ()
            else:
                return True

    def _take_events(self) -> None:
        while self._inbox.events:
            entries, ticket = self._inbox.events.popleft()
            made = frames(line for _, line in self._lines(entries))
            self._pending += [(frame, count, []) for frame, count in made] or [(b"", 0, [])]
            self._pending[-1][2].append(ticket)

    def _write_pending(self) -> None:
        if not self._pending or time.monotonic() < self._retry_at:
            return
        try:
            while self._pending:
                frame, count, tickets = self._pending[0]
                if frame:
                    self._events.write(frame)
                    self._syncer.request(self._events.segment)
                self._pending.popleft()
                self.written += count
                for ticket in tickets:
                    ticket.done()
        except OSError as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._tell("events", "an event could not be written (%s); trying again until it can", error)

    def _write_rows(self) -> None:
        entries: list[Entry] = []
        tickets: list[Ticket] = []
        while self._inbox.rows and len(entries) < SLICE:
            row = self._inbox.rows.popleft()
            if isinstance(row, Ticket):
                tickets.append(row)
            else:
                entries.append(row)
        if entries:
            self._write_slice(entries)
        if tickets:
            # Who flushes waits for the events of before, too.
            self._take_events()
            self._pending.append((b"", 0, tickets))

    def _write_slice(self, entries: list[Entry]) -> None:
        if self._bound_reached():
            self._drop(entries, GapReason.JOURNAL_FULL, f"the journal has reached its bound, {self._limits.held} bytes")
            return
        made = self._lines(entries)
        for frame, count in list(frames(line for _, line in made)):
            try:
                self._rows.write(frame)
            except OSError as error:
                reason = GapReason.JOURNAL_FULL if error.errno in _FULL else GapReason.WRITE_FAILED
                self._drop([entry for entry, _ in made[:count]], reason, str(error))
            else:
                self.written += count
                self._gaps.end()
            del made[:count]

    def _bound_reached(self) -> bool:
        if self._rows.bytes_held() + self._events.bytes_held() < self._limits.held:
            return False
        now = time.monotonic()
        if now - self._recounted_at > RECOUNT_SECONDS:
            self._recounted_at = now
            self._rows.recount()
            self._events.recount()
        return self._rows.bytes_held() + self._events.bytes_held() >= self._limits.held

    def _lines(self, entries: list[Entry]) -> list[tuple[Entry, bytes]]:
        """The records that can be made; the others are counted."""
        made = []
        for entry in entries:
            try:
                made.append((entry, self._encoder.line(entry)))
            except ValueError as error:
                self._tell("invalid", "a record of the agent breaks its own schema and is dropped: %s", error)
                self._gaps.add(entry[0], GapReason.INVALID, str(error))
        return made

    def _drop(self, entries: list[Entry], reason: GapReason, detail: str) -> None:
        self._tell(reason.value, "step rows are dropped and counted: %s", detail)
        for entry in entries:
            self._gaps.add(entry[0], reason, detail)

    def _tell(self, what: str, message: str, *details: object) -> None:
        if what not in self._told:
            self._told.add(what)
            with suppress(Exception):  # a handler of the script's own logging may raise; the writer must live on
                logger.warning("firstbad: " + message, *details)
