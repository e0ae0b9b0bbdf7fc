"""The git state of a script: asked of git itself, read-only, in bounded time."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

_REDIRECTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE")


def script_commit(script: Path, wait_seconds: float = 10.0) -> tuple[str | None, bool | None]:
    """
    Commit of the repository that holds `script` (a file or folder), and whether its tracked files differ from it.

    Takes no lock, runs no hook, changes nothing, asks nobody. A script that the repository ignores (an installed
    package in a virtual environment) belongs to no commit. What git cannot say within `wait_seconds` is None: no git,
    no repository, no commit yet.

    Returns:
        (full commit hash or None, dirty or None).
    """
    script = script.absolute()
    folder = script if script.is_dir() else script.parent
    deadline = time.monotonic() + wait_seconds
    head = _git(folder, deadline, "rev-parse", "--verify", "--quiet", "HEAD")
    if head is None or not head.strip() or _git(folder, deadline, "check-ignore", "--quiet", str(script)) is not None:
        return None, None
    status = _git(folder, deadline, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=untracked")
    return head.strip(), None if status is None else bool(status.strip())


def _git(folder: Path, deadline: float, *command: str) -> str | None:
    """Standard output of a git command; None when it fails, is missing or takes too long."""
    environment = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            # core.fsmonitor may name a program of the repository's choice; it must not run here.
            ["git", "-c", "core.fsmonitor=false", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=max(deadline - time.monotonic(), 0.01),
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
