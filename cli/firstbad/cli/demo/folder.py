"""The demo's folder: made new, or replaced when it is a demo's."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firstbad.cli.demo.errors import DemoError

_MARK = "demo.json"
_MADE_BY = "firstbad demo"
_PARTS = ("db", "journal", "logs")


@contextmanager
def demo_folder(path: Path) -> Iterator[Path]:
    """
    `path` as an empty demo folder, held by this process until the end of the `with` block.

    Only what a demo made is ever deleted.

    Raises:
        DemoError: it is something else, or another demo is at work in it.
    """
    path = path.absolute()
    mark = path / _MARK
    if path.is_dir():
        if any(path.iterdir()) and not _is_demo(mark):
            raise DemoError(f"{path} is not empty and was not made by firstbad demo; give another folder with --dir")
    elif path.exists() or path.is_symlink():
        raise DemoError(f"{path} is no folder; give another one with --dir")
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = mark.open("a")
    except OSError as error:
        raise DemoError(
            f"cannot make the folder {path} ({error.strerror}); give one that can be written to with --dir"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DemoError(
                f"another firstbad demo is at work in {path}; wait for it, or give another folder with --dir"
            ) from error
        note(path)
        _empty(path)
        yield path


def note(path: Path, **facts: Any) -> None:
    """Write the folder's mark, with what is known of the demo."""
    (path / _MARK).write_text(json.dumps({"made_by": _MADE_BY, **facts}, indent=2) + "\n")


def _is_demo(mark: Path) -> bool:
    try:
        return bool(json.loads(mark.read_text())["made_by"] == _MADE_BY)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _empty(path: Path) -> None:
    for name in _PARTS:
        try:
            shutil.rmtree(path / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DemoError(f"cannot delete {path / name} of the last demo ({error.strerror})") from error
    shutil.copyfile(Path(__file__).with_name("train.py"), path / "train.py")
    # Settings of a project above this folder are none of the demo's, and its files are none of that project's.
    (path / "pyproject.toml").write_text(
        "# The nearest pyproject.toml counts: the demo runs with firstbad's defaults.\n"
    )
    (path / ".gitignore").write_text("*\n")


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    inside = os.path.relpath(path)
    return str(path) if inside.startswith("..") else inside
