"""The door of the journal: what the training thread calls."""

from __future__ import annotations

import atexit
import os
import re
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstbad.agent.journal.encoding import Encoder
from firstbad.agent.journal.gaps import Gaps
from firstbad.agent.journal.inbox import Inbox, Item
from firstbad.agent.journal.space import bound
from firstbad.agent.journal.writer import Limits, Writer
from firstbad.schema import GapReason, Record

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of the records of one rank."""

    records_written: int
    records_dropped: int
    event_waits_timed_out: int


class Journal:
    """
    Append-only files of one rank's records, on the node's own disk.

    The training thread hands over a record's fields and goes on; one writer thread checks, encodes and writes them. A
    step row is in the file within 50 ms, an event when `append_event` returns True: written by write(2), so it
    survives kill -9. After construction nothing here raises into the caller, and a forked child writes nothing.

    Args:
        directory: the journal folder; a folder per host is made in it.
        run_id, incarnation, rank: whose records these are.
        host: host name, for the folder and the records; default: this machine's.
        max_bytes: bound of this process's files; past it step rows are dropped and counted, events go on. Default:
            1 GiB; in a memory file system a quarter of what is free there, shared by the LOCAL_WORLD_SIZE ranks.
        queue_size: step rows that may wait for the writer; past it they are dropped and counted.
        event_room: bytes allocated at once for events, at most a quarter of `max_bytes`.
        segment_bytes: size at which a segment ends, at most an eighth of `max_bytes`: only ended segments can be
            loaded and deleted, which is what makes place again.

    Raises:
        OSError: the folder cannot be made or written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        run_id: str,
        incarnation: str,
        rank: int,
        host: str | None = None,
        max_bytes: int | None = None,
        queue_size: int = 65_536,
        event_room: int = MIB,
        segment_bytes: int = 8 * MIB,
    ) -> None:
        host = host or socket.gethostname() or "localhost"
        folder = prepare(directory, host)
        stem = folder / f"{_plain(run_id)[:80]}-{incarnation}-r{rank}-p{os.getpid()}"
        held = bound(folder, _local_ranks()) if max_bytes is None else max_bytes
        limits = Limits(held=held, segment=min(segment_bytes, held // 8), room=min(event_room, held // 4))
        self._closed = False
        self._timeouts = 0
        self._gaps = Gaps()
        self._inbox = Inbox(queue_size)
        encoder = Encoder(run_id=run_id, incarnation=incarnation, rank=rank, host=host)
        self._writer = Writer(stem, limits, self._inbox, self._gaps, encoder)
        _forget_in_children(self)
        atexit.register(_flush_at_exit, weakref.ref(self))
        self._writer.start()

    @property
    def counters(self) -> Counters:
        """Records written and dropped so far, and events whose wait ended without them."""
        return Counters(self._writer.written, self._gaps.total, self._timeouts)

    def append(self, model: type[Record], fields: dict[str, Any]) -> None:
        """Hand over a step row. Never waits; `fields` now belongs to the journal. A full queue drops it, counted."""
        if self._closed:
            return
        dropped = self._inbox.put_row(model, fields)
        if dropped is not None:
            self._gaps.add(dropped, GapReason.QUEUE_FULL)

    def append_event(self, items: Sequence[Item], wait_seconds: float = 1.0) -> bool:
        """
        Hand over records that belong together and wait until write(2) has taken them.

        Returns: whether they are written (one that breaks its own schema is left out and counted); False after
        `wait_seconds` (counted), and the writer goes on trying.
        """
        if self._closed or not items:
            return not items
        if self._inbox.put_event(items).wait(wait_seconds):
            return True
        self._timeouts += 1
        return False

    def flush(self, wait_seconds: float = 1.0) -> bool:
        """Wait until everything handed over so far is written or counted as dropped."""
        return self._closed or self._inbox.put_marker().wait(wait_seconds)

    def close(self, items: Sequence[Item] = (), wait_seconds: float = 5.0) -> bool:
        """
        Write what waits, then `items` as the very last, seal the segments, end the writer. Only the first call counts.

        Returns: whether all of it was done within `wait_seconds`; the process may end either way.
        """
        if self._closed:
            return True
        self._closed = True
        return self._writer.stop(items, wait_seconds)

    def abandon(self) -> None:
        """Never write again in this process: it is a forked child, and the files are the parent's."""
        self._closed = True


def prepare(directory: Path, host: str) -> Path:
    """
    The folder of a host's journals, made when missing.

    Raises:
        OSError: it cannot be made or written.
    """
    folder = directory / _plain(host)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"the journal folder {folder} may not be written by this user")
    return folder


def _plain(name: str) -> str:
    """A name for files: letters, digits, dot and underscore (the dash separates the parts of a segment's name)."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", name).lstrip(".") or "_"


def _local_ranks() -> int:
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdecimal() else 1


_living: weakref.WeakSet[Journal] = weakref.WeakSet()
_hooked = False


def _forget_in_children(journal: Journal) -> None:
    global _hooked
    _living.add(journal)
    if not _hooked:
        _hooked = True
        os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for journal in list(_living):
        journal.abandon()


def _flush_at_exit(reference: weakref.ref[Journal]) -> None:
    # Not close: the run end may still come, from a callback that was registered earlier and so runs later.
    journal = reference()
    if journal is not None:
        journal.flush(2.0)
