"""Journals in tests: made, compared with what was handed over, and written by a process that says what returned."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import ledger

from firstbad.agent.journal import Journal
from firstbad.schema import Action, Gap, GapReason, Step


def open_journal(folder: Path, **options: Any) -> Journal:
    """A journal of rank 0 on host `here`."""
    return Journal(folder, run_id="run/1", incarnation="0" * 32, rank=0, host="here", **options)


def step_fields(step: int, loss: float = float("nan")) -> dict[str, Any]:
    """A small step row."""
    counts = {"step": step, "applied_step": step, "micro_steps": 1, "skip_count": 0}
    return {**counts, "action": Action.APPLY, "degraded": False, "loss": loss}


def event_fields(number: int) -> dict[str, Any]:
    """The smallest record that goes by the events lane."""
    return {"first_seq": number, "last_seq": number, "dropped": 1, "reason": GapReason.QUEUE_FULL, "detail": "test"}


def holes(folder: Path) -> set[int]:
    """Sequence numbers below the largest that no record has."""
    present = {record.seq for record in ledger.records(folder)}
    return set(range(max(present) + 1)) - present


def admitted(folder: Path) -> set[int]:
    """Sequence numbers that the journal's own Gap records name, each once."""
    gaps = [gap for gap in ledger.of_type(folder, Gap) if gap.detail != "test"]
    named = [seq for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1)]
    assert sum(gap.dropped for gap in gaps) == len(named) == len(set(named))
    return set(named)


def main() -> None:
    """
    Append rows, and an event with every `argv[2]`-th, until killed.

    One line each: kind, number, monotonic nanoseconds when it was handed over, records known to be written by then,
    nanoseconds that the machine has taken from a sleeping thread at worst so far.
    """
    journal, every = open_journal(Path(sys.argv[1])), int(sys.argv[2])
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
        print("step", number, time.monotonic_ns(), journal.counters.records_written, worst, flush=True)
        if number % every == 0 and journal.append_event([(Gap, event_fields(number))]):
            print("event", number, time.monotonic_ns(), journal.counters.records_written, worst, flush=True)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
