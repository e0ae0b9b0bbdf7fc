"""The writer thread: takes entries off the queue, makes records of them, and puts frames into the lanes."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firstbad.agent.journal.gaps import Gaps
from firstbad.agent.journal.lane import Lane
from firstbad.schema import FrameError, Gap, GapReason, Record, encode_record

logger = logging.getLogger("firstbad.agent")

POLL_SECONDS = 0.02
"""Longest time that a step row waits for the writer: well under the 50 ms that are promised."""
SLICE = 100
"""Records encoded at once; then the interpreter lock is given up, so that a backlog does not slow training."""
RETRY_SECONDS = 0.1
"""Pause before an event that could not be written is tried again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record to be made: its place, its time, its type, its fields."""

    seq: int
    ts: int
    model: type[Record]
    fields: dict[str, Any]


class Ticket:
    """Somebody waits for entries to be written."""

    def __init__(self) -> None:
        self._done = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Whether it was done within `seconds`."""
        return self._done.wait(seconds)

    def done(self) -> None:
        """It is."""
        self._done.set()


class Queue:
    """What waits for the writer: step rows (bounded), and events with the tickets of those who wait for them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.steps: deque[Entry] = deque()
        self.events: deque[tuple[list[Entry], Ticket]] = deque()
        self.wake = threading.Event()

    def put_step(self, entry: Entry) -> bool:
        """False when the queue is full. Does not wake the writer: that costs the training thread more than the row."""
        if len(self.steps) >= self._size:
            return False
        self.steps.append(entry)
        return True

    def put_event(self, entries: list[Entry], ticket: Ticket) -> None:
        """Events are never refused."""
        self.events.append((entries, ticket))
        self.wake.set()

    def put_marker(self, ticket: Ticket) -> None:
        """A ticket that is done when the rows before it are."""
        self.steps.append(Entry(-1, 0, Record, {"ticket": ticket}))
        self.wake.set()


class Writer:
    """Owns both lanes. `start` begins the thread, `stop` drains, seals and ends it."""

    def __init__(
        self,
        events: Lane,
        steps: Lane,
        queue: Queue,
        gaps: Gaps,
        *,
        envelope: dict[str, Any],
        next_seq: Callable[[], int],
        max_bytes: int,
    ) -> None:
        self.written = 0
        self._events = events
        self._steps = steps
        self._queue = queue
        self._gaps = gaps
        self._envelope = envelope
        self._next_seq = next_seq
        self._max_bytes = max_bytes
        self._stopping = False
        self._told: set[str] = set()
        self._admissions: list[bytes] = []
        self._to_sync = threading.Event()
        self._thread = threading.Thread(target=self._run, name="firstbad-journal", daemon=True)
        self._syncer = threading.Thread(target=self._sync, name="firstbad-sync", daemon=True)

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()
        self._syncer.start()

    def stop(self, wait_seconds: float) -> bool:
        """Write everything, seal, end; whether that was done in time."""
        self._stopping = True
        self._queue.wake.set()
        self._thread.join(wait_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            stopping = self._stopping
            self._queue.wake.wait(POLL_SECONDS)
            self._queue.wake.clear()
            try:
                drained = self._drain()
                self._admit_gaps()
                drained = drained and not self._admissions
            except Exception as error:
                self._tell("writer", "the journal's writer failed (%s); it goes on with what follows", error)
                drained = False
            if stopping and drained:
                break
        self._events.end()
        self._steps.end()

    def _drain(self) -> bool:
        """Write what waits; events first. False when an event could not be written and stays at the head."""
        while self._queue.events or self._queue.steps:
            if not self._write_events():
                time.sleep(RETRY_SECONDS)
                return False
            self._write_steps()
            time.sleep(0)
        return True

    def _write_events(self) -> bool:
        while self._queue.events:
            entries, ticket = self._queue.events[0]
            lines = [line for entry in entries if (line := self._encode(entry)) is not None]
            try:
                for start in range(0, len(lines), SLICE):
                    self._events.write(lines[start : start + SLICE])
            except FrameError as error:
                for entry in entries:
                    self._gaps.add(entry.seq, GapReason.INVALID, str(error))
                lines = []
            except OSError as error:
                self._tell("events", "an event could not be written (%s); trying again until it can", error)
                return False
            self._queue.events.popleft()
            self.written += len(lines)
            ticket.done()
            self._to_sync.set()
        return True

    def _write_steps(self) -> None:
        entries: list[Entry] = []
        tickets: list[Ticket] = []
        while self._queue.steps and len(entries) < SLICE:
            entry = self._queue.steps.popleft()
            if entry.seq < 0:
                tickets.append(entry.fields["ticket"])
            else:
                entries.append(entry)
        if entries:
            self._write_slice(entries)
        for ticket in tickets:
            ticket.done()

    def _write_slice(self, entries: list[Entry]) -> None:
        if self._steps.bytes_held() + self._events.bytes_held() >= self._max_bytes:
            self._drop(entries, GapReason.JOURNAL_FULL, f"the journal has reached its bound of {self._max_bytes} bytes")
            return
        encoded = [(entry, line) for entry in entries if (line := self._encode(entry)) is not None]
        try:
            if encoded:
                self._steps.write([line for _, line in encoded])
            self.written += len(encoded)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            reason = GapReason.JOURNAL_FULL if full else GapReason.WRITE_FAILED
            self._drop([entry for entry, _ in encoded], reason, str(error))

    def _drop(self, entries: list[Entry], reason: GapReason, detail: str) -> None:
        self._tell(reason.value, "step rows are dropped and counted: %s", detail)
        for entry in entries:
            self._gaps.add(entry.seq, reason, detail)

    def _encode(self, entry: Entry) -> bytes | None:
        try:
            return encode_record(entry.model(**self._envelope, seq=entry.seq, ts=entry.ts, **entry.fields))
        except Exception as error:
            self._tell("invalid", "a record of the agent breaks its own schema and is dropped: %s", error)
            self._gaps.add(entry.seq, GapReason.INVALID, str(error)[:1000])
            return None

    def _admit_gaps(self) -> None:
        """Say what was dropped. A Gap's own number is taken once; it is tried until it is written."""
        if not self._admissions:
            now = time.time_ns() // 1_000
            self._admissions = [
                encode_record(Gap(**self._envelope, seq=self._next_seq(), ts=now, **hole)) for hole in self._gaps.take()
            ]
        if not self._admissions:
            return
        try:
            self._events.write(self._admissions)
        except OSError as error:
            self._tell("gaps", "dropped records could not be admitted yet (%s)", error)
            return
        self.written += len(self._admissions)
        self._admissions = []

    def _sync(self) -> None:
        """Bring events to the disk itself, away from the writer: a slow disk must not delay the next row."""
        while self._thread.is_alive():
            if self._to_sync.wait(0.5):
                self._to_sync.clear()
                try:
                    self._events.segment.sync()
                except OSError as error:
                    self._tell("sync", "an event is written but could not be forced to the disk (%s)", error)

    def _tell(self, what: str, message: str, *details: object) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning("firstbad: " + message, *details)
