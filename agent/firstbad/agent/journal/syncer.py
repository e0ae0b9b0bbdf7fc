"""Brings segments to the disk itself, in a thread of its own: a slow disk must not delay the next record."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from firstbad.agent.journal.segment import Segment
from firstbad.agent.journal.signals import block_signals


class Syncer:
    """
    Calls fdatasync on what it is given, some time later; nobody waits for it. Sealed segments are closed here, after
    their last sync, so that no other file can take over a descriptor in between.
    """

    def __init__(self, complain: Callable[[OSError], None]) -> None:
        self._complain = complain
        self._due: deque[tuple[Segment, bool]] = deque()
        self._bell = threading.Semaphore(0)
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="firstbad-sync", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def request(self, segment: Segment) -> None:
        """Sync the segment soon."""
        self._due.append((segment, False))
        self._bell.release()

    def retire(self, segment: Segment) -> None:
        """Sync the segment for the last time, then close it."""
        self._due.append((segment, True))
        self._bell.release()

    def end(self, wait_seconds: float) -> None:
        """Finish what is due, for at most `wait_seconds`; what is written is safe from this process's death anyway."""
        self._ending = True
        self._bell.release()
        self._thread.join(wait_seconds)

    def _run(self) -> None:
        block_signals()
        while True:
            self._bell.acquire()
            # Taken before the sync: what is written during it gets a sync of its own.
            due: dict[Segment, bool] = {}
            while self._due:
                segment, last = self._due.popleft()
                due[segment] = last
            for segment, last in due.items():
                try:
                    segment.sync()
                except OSError as error:
                    self._complain(error)
                if last:
                    segment.close()
            if self._ending and not self._due:
                return
