"""How much a journal may take where it lies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

DISK_BYTES = 1024 * 1024 * 1024
"""Bound of one process's files on a disk."""
_MEMORY = {"tmpfs", "ramfs"}


def bound(folder: Path, processes: int = 1) -> int:
    """
    Bytes that one of `processes` journals on this host may take: on a disk DISK_BYTES each, in a memory file system
    together a quarter of what is free there, because training needs that memory too.

    Raises:
        OSError: the folder is not there.
    """
    if _file_system(folder) in _MEMORY:
        return shutil.disk_usage(folder).free // 4 // max(1, processes)
    return DISK_BYTES


def _file_system(folder: Path) -> str:
    """Type of the file system a folder lies in, as in /proc/self/mountinfo; empty when the system does not say."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == wanted:
            return rest.split()[0]
    return ""
