"""
The no-change door: runs a training script under the guard, and is otherwise not there.

    torchrun ... -m firstbad.agent [options] train.py args...

Faithful to plain python: exit codes, sys.argv, __main__, signals (no handler is installed), atexit, threads,
tracebacks, spawned workers. What differs is in sys.orig_argv, in firstbad's own modules being loaded, and in launcher
frames below the program's in a live stack.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from firstbad.agent.attachment import Attachment, Finishing
from firstbad.agent.commandline import UsageError, parse
from firstbad.agent.ending import Ending, show_without_launcher
from firstbad.agent.program import NoModule, Program
from firstbad.agent.settings import Settings, SettingsError

USAGE_EXIT_CODE = 2
"""Nothing was run: the command line or a setting cannot be used."""


def main(words: Sequence[str] | None = None, *, make_guard: Callable[[Settings], Finishing] | None = None) -> None:
    """
    Run the program that the command line names, under a guard.

    Args:
        words: what follows `python -m firstbad.agent`; default sys.argv[1:].
        make_guard: makes the guard when the program has imported torch; default `firstbad.agent.guard.Guard`.

    Raises:
        SystemExit: code 2 when a setting, an option or the script's path cannot be used; every rank reads the same
            sources, so every rank says so. Else whatever leaves the program.
    """
    try:
        command = parse(sys.argv[1:] if words is None else words)
        if isinstance(command, str):
            print(command)
            return
        settings = Settings.resolve(command.settings, os.environ, Path.cwd())
    except (UsageError, SettingsError) as error:
        _refuse(f"firstbad: {error}", USAGE_EXIT_CODE)
    make = make_guard or _make_guard
    _launch(
        Program(command.program, command.arguments, is_module=command.is_module), Attachment(lambda: make(settings))
    )


def _launch(program: Program, attachment: Attachment) -> None:
    module = program.enter()
    ending = Ending(lambda: attachment.guard)
    attachment.begin()
    try:
        program.run(module)
    except NoModule as error:
        _refuse(f"{sys.executable}: {error}", 1)
    except BaseException as error:
        ending.left_by(error)
        if not isinstance(error, SystemExit):  # which python does not report
            show_without_launcher(error, keep_runpy=program.is_module)
        raise
    ending.returned()


def _make_guard(settings: Settings) -> Finishing:
    from firstbad.agent.guard import Guard

    return Guard(settings, at_exit=False)


def _refuse(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(code)
