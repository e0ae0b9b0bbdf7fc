"""
Puts batches into the ledger so that a kill at any moment costs nothing.

The order is rows, dead letters, then how far the segments were read. Killed in between, the next collector reads the
same bytes again, and the same rows replace themselves: a table's key is the record's natural key and content. Insert
tokens are not used: the engine can burn one in a crash and then drop the rows it never wrote.
"""

from __future__ import annotations

from threading import Event

import pyarrow as pa

from firstbad.collector.batch import Batch
from firstbad.collector.errors import InsertError
from firstbad.collector.source import Position
from firstbad.collector.store import Store

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0


class Stopped(Exception):
    """The stop event was set while a batch could not be inserted; its bytes stay in the journal."""


class Loader:
    """Inserts batches into one open store, and tries again while the engine says that it may pass later."""

    def __init__(self, store: Store, stop: Event) -> None:
        self._store = store
        self._stop = stop
        self.retries = 0
        """Inserts that had to be tried again."""

    def positions(self) -> dict[str, Position]:
        """How far each segment was loaded, by file."""
        rows = self._store.query("SELECT file, inode, offset, sealed FROM segment_progress FINAL").rows
        return {file: Position(file, inode, offset, sealed=bool(sealed)) for file, inode, offset, sealed in rows}

    def load(self, batch: Batch) -> None:
        """
        Insert a batch; when it returns, everything in it is on disk.

        Raises:
            StoreFull: no space left. InsertError: the engine refuses the rows for good. Stopped: asked to stop while
            trying again. Nothing is lost in any case: the journal keeps what is not loaded.
        """
        for name, table in batch.record_tables():
            self._insert(name, table)
        for name, table in batch.letter_tables():
            self._insert(name, table)
        self._insert(*batch.position_table())

    def _insert(self, name: str, table: pa.Table) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                self._store.insert(name, table)
            except InsertError as error:
                if not error.transient:
                    raise
                self.retries += 1
                if self._stop.wait(wait):
                    raise Stopped from error
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                return
