"""The collector's loop: tail all segments of a journal folder into a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from firstbad.collector.batch import Batch
from firstbad.collector.errors import JournalMissing
from firstbad.collector.loader import Loader, Stopped
from firstbad.collector.source import JournalFolder, Position, Segment
from firstbad.collector.store import Store

ROUND_BYTES = 16 * 1024 * 1024
"""Journal bytes after which a batch is inserted; bounds the collector's memory to some hundred MB."""


@dataclass(slots=True)
class Progress:
    """Counts of one `collect` call. Rows that came again after a restart are counted again."""

    records: Counter[str] = field(default_factory=Counter)
    """Rows inserted, by record type."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Dead letters inserted, by reason."""
    bytes_loaded: int = 0
    """Journal bytes read and inserted, damaged ones included."""
    batches: int = 0
    segments: int = 0
    """Segments found so far, those deleted since included."""
    segments_deleted: int = 0
    retries: int = 0
    """Inserts that were tried again."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Segments that cannot be read now, and why."""
    waiting_for_journal: bool = False
    """The journal folder is not there yet."""
    broken_parts: tuple[str, ...] = ()
    """Table parts that the engine set aside as damaged: rows are missing in the ledger."""
    migrations: tuple[str, ...] = ()
    """Migrations applied at the start."""


def collect(
    journal: Path,
    db: Path,
    *,
    once: bool = False,
    keep: bool = False,
    stop: Event | None = None,
    progress: Callable[[Progress], None] | None = None,
    poll_seconds: float = 0.1,
) -> Progress:
    """
    Load a journal into the ledger at `db`, which is made and migrated as needed.

    Args:
        journal: the folder that agents write to; when it is not there yet, a service waits for it.
        db: the ledger's folder.
        once: load what is there at the start and return, also while ranks go on writing; otherwise tail until `stop`
            is set.
        keep: leave loaded segments in the journal; otherwise sealed ones are deleted once all of their rows are on
            disk in the ledger.
        stop: set from another thread or a signal handler; the batch in hand is finished first.
        progress: called after every round with the counts so far, on this thread.
        poll_seconds: pause after a round that found nothing, seconds.

    Raises:
        JournalMissing: `once`, and there is no such folder.
        StoreError: the ledger cannot be opened, or an insert failed for good. What was not loaded stays in the journal.
    """
    stop = stop or Event()
    counts = Progress()
    report = progress or (lambda _: None)
    if once:
        JournalFolder(journal, {}).discover()  # a wrong path should not make a ledger
    with Store.open(db, purpose="collect", create=True) as store:
        counts.migrations = tuple(store.migrate())
        counts.broken_parts = store.broken_parts
        loader = Loader(store, stop)
        loaded = loader.positions()
        folder = JournalFolder(journal, loaded)
        turn = 0
        found: set[str] = set()
        behind: dict[str, int] = {}
        first = True
        while not stop.is_set():
            try:
                segments = folder.discover()
                counts.waiting_for_journal = False
            except JournalMissing:
                if once:
                    raise
                segments = []
                counts.waiting_for_journal = True
            found.update(segment.position.file for segment in segments)
            counts.segments = len(found)
            counts.unreadable.update(folder.unreadable)
            if once and first:
                behind = {segment.position.file: segment.size() for segment in segments}
            first = False
            here = {segment.position.file for segment in segments}
            # What somebody removed before it was read would be waited for without end.
            behind = {file: size for file, size in behind.items() if file in here}
            batch, turn = _read_round(segments, turn, counts, behind)
            if batch.positions:
                try:
                    loader.load(batch)
                except Stopped:
                    break
                loaded.update(batch.positions)
                _count(counts, batch)
            counts.retries = loader.retries
            if not keep:
                counts.segments_deleted += sum(_delete(segment, loaded) for segment in segments)
            report(counts)
            if once and not behind:
                break
            if not batch.positions:
                stop.wait(poll_seconds)
    return counts


def _read_round(segments: list[Segment], turn: int, counts: Progress, behind: dict[str, int]) -> tuple[Batch, int]:
    """
    A batch of what is new, beginning with segment number `turn`; and the number with which to go on.

    Files that were read up to the size that `behind` has for them are taken out of it.
    """
    batch = Batch()
    for index in range(len(segments)):
        segment = segments[(turn + index) % len(segments)]
        file = segment.position.file
        portion = None
        try:
            portion = segment.read()
            counts.unreadable.pop(file, None)
        except FileNotFoundError:
            pass  # deleted since it was found
        except OSError as error:
            counts.unreadable[file] = error.strerror or str(error)
        if portion is not None:
            batch.add(portion)
        if portion is None or segment.position.offset >= behind.get(file, 0):
            behind.pop(file, None)
        if batch.size >= ROUND_BYTES:
            return batch, (turn + index + 1) % len(segments)
    return batch, 0


def _delete(segment: Segment, loaded: dict[str, Position]) -> bool:
    """Delete a sealed segment of which the ledger holds everything; whether it was."""
    if loaded.get(segment.position.file) != segment.position or not segment.finished():
        return False
    try:
        segment.path.unlink()
    except OSError:
        return False  # on the next round
    return True


def _count(counts: Progress, batch: Batch) -> None:
    counts.records.update(batch.records)
    counts.dead_letters.update(letter.reason for letter in batch.letters)
    counts.bytes_loaded += batch.size
    counts.batches += 1
