"""How the program ended: what the run end says about it, and what the user sees of an exception."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from types import TracebackType

from firstbad.agent.attachment import Finishing
from firstbad.agent.errors import RunStopped
from firstbad.schema import Outcome

_OWN_FILES = frozenset(
    os.path.join(os.path.dirname(__file__), name)
    for name in ("__main__.py", "launcher.py", "program.py", "attachment.py", "ending.py")
)


class Ending:
    """
    Tells the guard, once, how the program ended.

    A failure is told at once: peers notice a dead rank within a second, and torchrun then kills what is still joining
    threads. A good end is told when the interpreter has joined the program's threads, which may still train, and before
    its atexit callbacks, which may close what telling needs, hang or end the process.

    Args:
        guard: gives the guard, or None when none was made.
    """

    def __init__(self, guard: Callable[[], Finishing | None]) -> None:
        self._guard = guard
        self._pid = os.getpid()

    def returned(self) -> None:
        """The program has run to its end."""
        # The callback registered last runs first.
        atexit.register(self._finish, Outcome.FINISHED, 0, None)

    def left_by(self, error: BaseException) -> None:
        """An exception left the program; a SystemExit may be a good end."""
        code = exit_code(error)
        stopped = _stop_behind(error)
        if stopped is not None:
            self._finish(Outcome.STOPPED, code, stopped)
        elif code == 0 and isinstance(error, SystemExit):
            self.returned()
        else:
            self._finish(Outcome.FAILED, code, error)

    def _finish(self, outcome: Outcome, code: int, error: BaseException | None) -> None:
        guard = self._guard()
        if guard is not None and os.getpid() == self._pid:
            guard.finish(outcome, code, error)


def exit_code(error: BaseException) -> int:
    """The exit code that python gives a process which `error` ends, as the shell sees it: 0 to 255."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
        return 1
    # Only the plain class makes python end itself by SIGINT.
    return 130 if type(error) is KeyboardInterrupt else 1


def _stop_behind(error: BaseException) -> RunStopped | None:
    """The stop by policy that `error` is, was raised from, or (a sys.exit) was called while handling."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, RunStopped):
            return current
        seen.add(id(current))
        current = current.__cause__ or (current.__context__ if isinstance(current, SystemExit) else None)
    return None


def show_without_launcher(error: BaseException, *, keep_runpy: bool) -> None:
    """
    Have the interpreter, which is about to report `error`, hand it to the program's own sys.excepthook with the
    traceback that plain python would give.
    """
    program_hook = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        sys.excepthook = program_hook
        if value is error:
            traceback = _without_launcher(traceback, keep_runpy=keep_runpy)
            value.__traceback__ = sys.last_traceback = traceback
        program_hook(kind, value, traceback)

    sys.excepthook = hook


def _without_launcher(traceback: TracebackType | None, *, keep_runpy: bool) -> TracebackType | None:
    kept: list[TracebackType] = []
    outside = True
    while traceback is not None:
        ours = traceback.tb_frame.f_code.co_filename in _OWN_FILES
        # Above the launcher stands the runpy that started it; `python -m` has it too, `python script` has not.
        runpy = outside and traceback.tb_frame.f_globals.get("__name__") == "runpy"
        outside = outside and (ours or runpy)
        if not ours and (keep_runpy or not runpy):
            kept.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
