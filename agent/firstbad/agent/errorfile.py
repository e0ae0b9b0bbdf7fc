"""
torchrun's error file of a rank that was stopped, so that torchrun's own summary tells why.

torchrun names a file to each rank (TORCHELASTIC_ERROR_FILE), reads it when the rank fails, and prints what it finds
under "traceback". Only a script whose main function carries @record writes one by itself.
"""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from pathlib import Path

from firstbad.agent.errors import RunStopped

logger = logging.getLogger("firstbad.agent")

VARIABLE = "TORCHELASTIC_ERROR_FILE"
_OWN_FOLDER = os.path.dirname(__file__) + os.sep


def write_error_file(error: RunStopped) -> None:
    """
    Leave the stop for torchrun: its sentence, then the script's own frames. Never raises.

    Does nothing where torchrun gave no file, and leaves alone what another has written (@record, another handler).
    """
    try:
        path = os.environ.get(VARIABLE)
        if not path or _readable(Path(path)):
            return
        # torchrun fails itself on a file that is not whole.
        draft = Path(f"{path}.{os.getpid()}")
        draft.write_text(json.dumps(_content(error)))
        draft.replace(path)
    except Exception as fault:
        logger.warning("firstbad: torchrun's error file could not be written (%s)", fault)


def _content(error: RunStopped) -> dict[str, object]:
    """The form that torch.distributed.elastic's ErrorHandler writes; its reader prints `py_callstack`."""
    sentence = f"{type(error).__name__}: {error}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OWN_FOLDER, "<frozen runpy>"))
    ]
    stack = f"{sentence}\n\n{''.join(traceback.format_list(frames))}".rstrip()
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    return {"message": {"message": sentence, "extraInfo": extra}}


def _readable(path: Path) -> bool:
    """Somebody has written a whole file already."""
    try:
        return "message" in json.loads(path.read_text())
    except (OSError, ValueError, TypeError):
        return False
