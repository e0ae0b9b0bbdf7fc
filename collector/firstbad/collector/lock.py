"""The lock of a ledger: one process at a time, by flock, which the kernel releases however that process ends."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from firstbad.collector.errors import StoreError, StoreLocked

LOCK_NAME = "firstbad.lock"
"""The lock file inside a ledger's folder; it also marks the folder as a ledger. It is never deleted."""


class StoreLock:
    """
    Holds the lock of one ledger folder from construction to `release()`.

    Raises:
        StoreLocked: another process holds it; the error names that process.
        StoreError: the lock file cannot be opened.
    """

    def __init__(self, folder: Path, purpose: str) -> None:
        path = folder / LOCK_NAME
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(
                f"cannot open {path}: {error.strerror}. The ledger's folder must be writable, also for reading it."
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read_holder(self._fd)
            os.close(self._fd)
            raise StoreLocked(folder, **holder) from error
        except OSError as error:
            os.close(self._fd)
            raise StoreError(
                f"cannot lock {path}: {error.strerror}. Keep the ledger on a file system with flock."
            ) from error
        _write_holder(self._fd, purpose)

    def release(self) -> None:
        """Let the next process in; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def _write_holder(fd: int, purpose: str) -> None:
    holder = {
        "pid": os.getpid(),
        "purpose": purpose,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([sys.argv[0], *sys.argv[1:]])[:1000],
    }
    text = json.dumps(holder).encode()
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text, 0)
    except OSError:
        # A full disk must not stop a reader from opening the ledger; who asks then learns no name.
        return


def _read_holder(fd: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(fd, 4096, 0))
        pid = holder.get("pid")
        return {
            "pid": pid if isinstance(pid, int) else None,
            **{key: str(holder.get(key, "")) for key in ("purpose", "since", "command")},
        }
    except (ValueError, AttributeError, OSError):
        return {"pid": None, "purpose": "", "since": "", "command": ""}
