"""The journal in a process that is not its own: forks, signals, exits, and kill -9 at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import journalling
import ledger
import pytest
from played import dense

from firstbad.schema import Gap, Step

PREAMBLE = """
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from journalling import *
journal = open_journal(Path(sys.argv[1]))
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code with an open `journal` in a process of its own."""
    support = str(Path(journalling.__file__).parent)
    command = [sys.executable, "-W", "ignore", "-c", PREAMBLE + code, str(folder), support]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_forked_child_writes_nothing_and_the_parent_goes_on(tmp_path: Path) -> None:
    """As DataLoader workers are; also a child that ends by itself, with its exit callbacks."""
    done = run(
        tmp_path,
        "journal.append(Step, step_fields(1))\n"
        "if (pid := os.fork()) == 0:\n"
        "    journal.append(Step, step_fields(2))\n"
        "    assert not journal.append_event([(Gap, event_fields(2))])\n"
        "    assert journal.counters.event_waits_timed_out == 0, 'no child waits for a writer that it does not have'\n"
        "    journal.close([(Gap, event_fields(2))])\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "journal.append(Step, step_fields(3))\n",
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [record.step for record in ledger.records(tmp_path)] == [1, 3], "exit without close still writes"


def test_an_exception_that_ends_the_script_leaves_everything_written(tmp_path: Path) -> None:
    """Exit without close."""
    done = run(tmp_path, "for n in range(500): journal.append(Step, step_fields(n))\nraise SystemExit(3)\n")

    assert (done.returncode, done.stderr) == (3, "")
    assert len(ledger.records(tmp_path)) == 500


def test_sigterm_ends_the_process_as_if_there_were_no_journal(tmp_path: Path) -> None:
    """By its default action, without a word."""
    done = run(tmp_path, "os.kill(os.getpid(), signal.SIGTERM)\nwhile True: time.sleep(1)\n")

    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


def test_a_signal_that_the_script_blocks_and_waits_for_reaches_it(tmp_path: Path) -> None:
    """A thread of ours that left it open would take it, and the process would die."""
    done = run(
        tmp_path,
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "assert journal.flush(30)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert signal.sigwait({signal.SIGTERM}) == signal.SIGTERM\n",
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_handler_may_hand_over_records_at_any_moment(tmp_path: Path) -> None:
    """It interrupts the hand-over itself, thousands of times; nothing hangs, nothing is lost."""
    done = run(
        tmp_path,
        "count = 0\n"
        "def on_alarm(*_):\n"
        "    global count\n"
        "    count += 1\n"
        "    journal.append(Step, step_fields(count))\n"
        "    journal.append_event([(Gap, event_fields(count))], wait_seconds=0)\n"
        "signal.signal(signal.SIGALRM, on_alarm)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)\n"
        "for n in range(4000):\n"
        "    journal.append(Step, step_fields(n))\n"
        "    journal.append_event([(Gap, event_fields(n))], wait_seconds=0)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "assert journal.close(wait_seconds=60)\n"
        "print(8000 + 2 * count)\n",
    )

    assert done.returncode == 0, done.stderr
    records = ledger.records(tmp_path)
    assert len(records) == int(done.stdout) > 8000
    assert dense(records)


KILLS = [(round(random.Random(7 + i).uniform(0.0, 0.5), 3), (7, 1000)[i % 2]) for i in range(20)]
"""
Drawn beforehand: seconds from the first row to the kill, and rows per event. An event takes the rows along to the file;
where there are few, rows get there by the writer's own clock.
"""


@pytest.mark.parametrize(("delay", "every"), KILLS)
def test_kill_9_loses_no_event_that_returned_and_no_row_older_than_50_ms(
    tmp_path: Path, delay: float, every: int
) -> None:
    """
    Truth is what the process said before it died, through a pipe.

    Without any clock: every event that returned, and as many records as were counted as written. By the clock: rows
    that were 50 ms old at its last word (not at the kill: it may have stood still by then), plus what the machine took
    meanwhile, as a thread of the killed process that sleeps as the writer does has measured it.
    """
    script = Path(journalling.__file__)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path), str(every)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        heard = process.stdout.readline()
        time.sleep(delay)
        process.kill()
        heard += process.stdout.read()
    said = [line.split() for line in heard[: heard.rfind(b"\n")].splitlines()]

    records = ledger.records(tmp_path)
    rows = {record.step for record in records if isinstance(record, Step)}
    assert {int(number) for kind, number, *_ in said if kind == b"event"} <= {
        gap.first_seq for gap in records if isinstance(gap, Gap)
    }
    assert len(records) >= max(int(written) for _, _, _, written, _ in said)
    stolen = max(int(worst) for *_, worst in said)
    due_before = max(int(at) for _, _, at, _, _ in said) - 50_000_000 - 2 * stolen
    assert {int(number) for kind, number, at, _, _ in said if kind == b"step" and int(at) < due_before} <= rows
    assert len({record.seq for record in records}) == len(records)
