"""A process that writes a journal and tells through its standard output what has returned; killed by tests."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from firstbad.agent.journal import Journal
from firstbad.schema import Action, Gap, GapReason, Step


def step_fields(step: int, loss: float = float("nan")) -> dict[str, object]:
    """A small step row."""
    counts = {"step": step, "applied_step": step, "micro_steps": 1, "skip_count": 0}
    return {**counts, "action": Action.APPLY, "degraded": False, "loss": loss}


def event_fields(number: int) -> dict[str, object]:
    """The smallest record that goes by the events lane."""
    return {"first_seq": number, "last_seq": number, "dropped": 1, "reason": GapReason.QUEUE_FULL, "detail": "test"}


def main() -> None:
    """Append rows and events until killed; one line each: kind, number, monotonic nanoseconds."""
    journal = Journal(Path(sys.argv[1]), run_id="kill", incarnation="0" * 32, rank=0, host="here")
    worst = 0

    def watch() -> None:
        # The writer sleeps 20 ms at a time; what this thread oversleeps, the machine has taken from the writer too.
        nonlocal worst
        while True:
            begun = time.monotonic_ns()
            time.sleep(0.005)
            worst = max(worst, time.monotonic_ns() - begun - 5_000_000)

    threading.Thread(target=watch, daemon=True).start()
    number = 0
    while True:
        number += 1
        journal.append(Step, step_fields(number))
        print("step", number, time.monotonic_ns(), worst, flush=True)
        if number % 7 == 0 and journal.append_event([(Gap, event_fields(number))]):
            print("event", number, time.monotonic_ns(), worst, flush=True)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
