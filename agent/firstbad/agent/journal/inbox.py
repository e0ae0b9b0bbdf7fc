"""What waits for the writer: records not yet made, numbered in the order in which they were handed over."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from firstbad.schema import Record

Item = tuple[type[Record], dict[str, Any]]
"""A record to be made: its type, and its fields without the envelope."""
Entry = tuple[int, int, type[Record], dict[str, Any]]
"""An item with its place: seq, ts (microseconds UTC), type, fields. A tuple, because it costs a tenth of a class."""


class Ticket:
    """Somebody waits for records to be written."""

    def __init__(self) -> None:
        self._done = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Whether it was done within `seconds`."""
        return self._done.wait(seconds)

    def done(self) -> None:
        """It is."""
        self._done.set()


class Inbox:
    """
    Two queues, rows and events, that share one sequence; any thread puts, the writer alone takes.

    A number is drawn and its record queued under one lock, so that a queue is always in order of seq. The lock is
    re-entrant and the bell is a bare lock, because a signal handler may run between any two lines here and hand over
    records of its own (threading.Event.set would dead-lock).
    """

    def __init__(self, size: int) -> None:
        self.rows: deque[Entry | Ticket] = deque()
        self.events: deque[tuple[list[Entry], Ticket]] = deque()
        self._size = size
        self._sequence = itertools.count()
        self._lock = threading.RLock()
        self._bell = threading.Lock()
        self._bell.acquire()

    def put_row(self, model: type[Record], fields: dict[str, Any]) -> int | None:
        """
        Queue a row; the writer is not woken, which would cost the caller more than the row.

        Returns: None; or the number of a row that had no place and is dropped.
        """
        with self._lock:
            seq = next(self._sequence)
            if len(self.rows) >= self._size:
                return seq
            self.rows.append((seq, time.time_ns() // 1_000, model, fields))
        return None

    def put_event(self, items: Sequence[Item]) -> Ticket:
        """Queue records that belong together and wake the writer. Events are never refused."""
        ticket = Ticket()
        with self._lock:
            ts = time.time_ns() // 1_000
            self.events.append(([(next(self._sequence), ts, model, fields) for model, fields in items], ticket))
        self.ring()
        return ticket

    def put_marker(self) -> Ticket:
        """A ticket that is done when everything put before it is."""
        ticket = Ticket()
        self.rows.append(ticket)
        self.ring()
        return ticket

    def ring(self) -> None:
        """Wake the writer; any number of rings before it wakes are one."""
        with suppress(RuntimeError):  # it has been rung already
            self._bell.release()

    def listen(self, seconds: float) -> None:
        """Sleep until somebody rings, or `seconds` have passed."""
        self._bell.acquire(timeout=seconds)

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self.rows and not self.events
