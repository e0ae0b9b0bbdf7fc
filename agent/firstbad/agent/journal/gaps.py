"""What was dropped, until the journal can say so: a Gap record admits a range of sequence numbers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from firstbad.schema import GapReason


@dataclass(slots=True)
class _Hole:
    first: int
    last: int
    dropped: int
    reason: GapReason
    detail: str | None

    def fields(self) -> dict[str, Any]:
        return {
            "first_seq": self.first,
            "last_seq": self.last,
            "dropped": self.dropped,
            "reason": self.reason,
            "detail": self.detail,
        }


class Gaps:
    """Collects dropped sequence numbers from any thread; neighbours with one reason become one hole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holes: list[_Hole] = []
        self.total = 0

    def add(self, seq: int, reason: GapReason, detail: str | None = None) -> None:
        """Note one dropped record."""
        with self._lock:
            self.total += 1
            last = self._holes[-1] if self._holes else None
            # A hole ends at a record that was kept: a range must hold nothing but what is missing.
            if last is not None and last.reason is reason and seq == last.last + 1:
                last.last, last.dropped = seq, last.dropped + 1
            else:
                self._holes.append(_Hole(seq, seq, 1, reason, detail))

    def take(self, limit: int = 64) -> list[dict[str, Any]]:
        """The fields of up to `limit` Gap records, which are then no longer held here."""
        with self._lock:
            taken, self._holes = self._holes[:limit], self._holes[limit:]
        return [hole.fields() for hole in taken]
