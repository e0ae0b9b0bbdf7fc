"""What was dropped, until the journal can say so: a Gap record admits a range of sequence numbers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from firstbad.schema import GapReason

HOLD_SECONDS = 10.0
"""A hole that goes on growing is admitted this often. Admitting each row would fill the disk as the rows did."""


@dataclass(slots=True)
class _Hole:
    first: int
    last: int
    reason: GapReason
    detail: str | None
    since: float

    def fields(self) -> dict[str, Any]:
        return {
            "first_seq": self.first,
            "last_seq": self.last,
            "dropped": self.last - self.first + 1,
            "reason": self.reason,
            "detail": self.detail,
        }


class Gaps:
    """Collects dropped sequence numbers from any thread; neighbours with one reason become one hole."""

    def __init__(self) -> None:
        # Re-entrant for the same reason as the inbox's lock.
        self._lock = threading.RLock()
        self._holes: list[_Hole] = []
        self._growing = False
        self.total = 0

    def add(self, seq: int, reason: GapReason, detail: str | None = None) -> None:
        """Note one dropped record."""
        with self._lock:
            self.total += 1
            newest = self._holes[-1] if self._holes else None
            # A hole ends at a record that was kept: a range must hold nothing but what is missing.
            if newest is not None and newest.reason is reason and seq == newest.last + 1:
                newest.last = seq
            else:
                self._holes.append(_Hole(seq, seq, reason, detail, time.monotonic()))
            self._growing = True

    def end(self) -> None:
        """Rows are kept again: the newest hole grows no more."""
        self._growing = False

    def take(self, *, everything: bool, limit: int = 64) -> list[dict[str, Any]]:
        """The fields of up to `limit` Gap records, no longer held here: of holes that are complete, or old enough."""
        if not self._holes:
            return []
        with self._lock:
            complete = len(self._holes)
            if self._growing and not everything and time.monotonic() - self._holes[-1].since < HOLD_SECONDS:
                complete -= 1
            count = min(complete, limit)
            taken, self._holes = self._holes[:count], self._holes[count:]
        return [hole.fields() for hole in taken]
