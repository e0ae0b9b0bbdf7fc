"""
Runs a collector in a process of its own, for tests that kill it: `python run_collector.py JOURNAL DB [once]`.

Prints one line of JSON per round that loaded something, and a last one at the end.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from threading import Event

from firstbad.collector import StoreError
from firstbad.collector.collect import Progress, collect

stop = Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
batches = 0


def show(progress: Progress) -> None:
    """Print the counts when they changed."""
    global batches
    if progress.batches != batches:
        batches = progress.batches
        print(json.dumps({"records": progress.records, "deleted": progress.segments_deleted}), flush=True)


try:
    end = collect(Path(sys.argv[1]), Path(sys.argv[2]), once="once" in sys.argv, stop=stop, progress=show)
except StoreError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(json.dumps({"records": end.records, "dead_letters": end.dead_letters, "deleted": end.segments_deleted}))
