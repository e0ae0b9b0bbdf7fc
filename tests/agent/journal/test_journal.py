"""The laws of the journal: dense, ordered, bounded, survives kill -9, never raises, never writes from a child."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import journalling
import ledger
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journalling import event_fields, step_fields
from played import dense

from firstbad.agent.journal import Journal
from firstbad.schema import FrameError, Gap, GapReason, Step
from firstbad.schema.codec import FrameKind, read_frame

INCARNATION = "0" * 32
DELAYS = [round(random.Random(7 + i).uniform(0.02, 0.6), 3) for i in range(20)]
"""Seconds from the first row to the kill, drawn beforehand."""


def make(folder: Path, **options: Any) -> Journal:
    return Journal(folder, run_id="run/1", incarnation=INCARNATION, rank=0, host="here", **options)


def test_everything_handed_over_is_there_in_order_and_dense(tmp_path: Path) -> None:
    """Rows and events of several threads share one sequence without holes."""
    journal = make(tmp_path)

    def work(base: int) -> None:
        for number in range(50):
            journal.append(Step, step_fields(base + number))
            if number % 10 == 0:
                assert journal.append_event([(Gap, event_fields(base + number))] * 2)

    threads = [threading.Thread(target=work, args=(base * 1000,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.close([(Gap, event_fields(9))])

    records = ledger.records(tmp_path)
    assert len(records) == 4 * (50 + 10) + 1
    assert dense(records)
    assert {record.run_id for record in records} == {"run/1"}
    assert all(record.loss != record.loss for record in records if isinstance(record, Step)), "NaN stays NaN"
    assert (journal.counters.records_written, journal.counters.records_dropped) == (len(records), 0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["step", "event", "pair", "flush"]), max_size=60), st.integers(300, 3000))
def test_any_interleaving_with_any_rotation_decodes_to_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str], segment_bytes: int
) -> None:
    """Segments end at any size; each lane stays in order of seq."""
    folder = tmp_path_factory.mktemp("journal")
    journal = make(folder, segment_bytes=segment_bytes, event_room=1024)
    expected: list[Any] = []
    for number, action in enumerate(actions):
        if action == "step":
            journal.append(Step, step_fields(number, 1.0))
            expected.append(("step", number))
        elif action == "flush":
            assert journal.flush(30)
        else:
            count = 2 if action == "pair" else 1
            assert journal.append_event([(Gap, event_fields(number))] * count, wait_seconds=30)
            expected += [("gap", number)] * count
    assert journal.close(wait_seconds=30)

    found = [(r.record, r.step if isinstance(r, Step) else r.first_seq) for r in ledger.records(folder)]
    assert found == expected


def test_a_closed_segment_ends_in_a_seal_and_holds_nothing_else(tmp_path: Path) -> None:
    """Allocated room that was not used is given back."""
    journal = make(tmp_path)
    journal.append_event([(Gap, event_fields(1))])
    journal.append(Step, step_fields(1))
    journal.close()

    for segment in tmp_path.glob("here/*.fbj"):
        buffer, offset, kinds = segment.read_bytes(), 0, []
        while offset < len(buffer):
            frame = read_frame(buffer, offset)
            assert frame is not None
            kinds.append(frame.kind)
            offset = frame.end
        assert kinds == [FrameKind.RECORDS, FrameKind.SEAL]


def test_an_open_events_segment_shows_its_room_as_zeros(tmp_path: Path) -> None:
    """A reader sees the frames, then nothing yet."""
    journal = make(tmp_path)
    journal.append_event([(Gap, event_fields(1))])

    (segment,) = tmp_path.glob("here/*-events-000000.fbj")
    buffer = segment.read_bytes()
    frame = read_frame(buffer, 0)
    assert frame is not None
    assert len(buffer) == 1024 * 1024
    assert buffer[frame.end :].strip(b"\0") == b""
    with pytest.raises(FrameError):
        read_frame(buffer, frame.end)
    journal.close()


def holes(folder: Path) -> set[int]:
    """Sequence numbers that no record has."""
    present = {record.seq for record in ledger.records(folder)}
    return set(range(max(present) + 1)) - present


def admitted(folder: Path) -> set[int]:
    """Sequence numbers that Gap records own up to."""
    gaps = ledger.of_type(folder, Gap)
    assert all(gap.dropped == gap.last_seq - gap.first_seq + 1 for gap in gaps)
    return {seq for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1)}


def test_past_its_bound_rows_stop_and_are_admitted_while_events_go_on(tmp_path: Path) -> None:
    """What is missing is exactly what the Gap records say."""
    journal = make(tmp_path, max_bytes=20_000)
    for number in range(200):
        journal.append(Step, step_fields(number))
    assert journal.append_event([(Step, step_fields(777))])
    journal.close()

    assert 777 in {record.step for record in ledger.of_type(tmp_path, Step)}
    assert holes(tmp_path) == admitted(tmp_path) != set()
    assert {gap.reason for gap in ledger.of_type(tmp_path, Gap)} == {GapReason.JOURNAL_FULL}
    assert journal.counters.records_dropped == len(holes(tmp_path))


def test_a_full_queue_drops_rows_and_admits_them(tmp_path: Path) -> None:
    """The training thread never waits."""
    journal = make(tmp_path, queue_size=10)
    for number in range(5000):
        journal.append(Step, step_fields(number))
    journal.close()

    assert holes(tmp_path) == admitted(tmp_path) != set()


def test_a_record_that_breaks_its_schema_is_dropped_counted_and_admitted(tmp_path: Path) -> None:
    """A bug of the agent's own must not take the neighbours along."""
    journal = make(tmp_path)
    assert journal.append_event([(Gap, event_fields(1)), (Gap, {"first_seq": -1}), (Gap, event_fields(2))])
    journal.close()

    assert holes(tmp_path) == {1}
    assert {(g.first_seq, g.last_seq) for g in ledger.of_type(tmp_path, Gap) if g.reason is GapReason.INVALID} == {
        (1, 1)
    }


FULL_DISK = """
import resource, sys, signal
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from firstbad.agent.journal import Journal
from firstbad.schema import Gap, Step
from journalling import event_fields, step_fields
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(Path(sys.argv[1]), run_id="r", incarnation="0" * 32, rank=0, host="here", event_room=65536)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
for number in range(300):
    journal.append(Step, step_fields(number))
assert journal.flush(10)
assert journal.append_event([(Gap, event_fields(5))], wait_seconds=10), "events have their room"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for number in range(1000, 1010):
    journal.append(Step, step_fields(number))
assert journal.close()
"""


def test_a_full_disk_stops_rows_not_events_and_rows_resume_when_there_is_space(tmp_path: Path) -> None:
    """A real limit on file size: write(2) fails half-way, the torn bytes are gone over."""
    support = str(Path(journalling.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), support], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "JOURNAL_FULL" not in done.stdout
    steps = {record.step for record in ledger.of_type(tmp_path, Step)}
    assert set(range(1000, 1010)) <= steps
    assert holes(tmp_path) == admitted(tmp_path) - {5} != set()


def test_a_forked_child_writes_nothing_and_the_parent_goes_on(tmp_path: Path) -> None:
    """As DataLoader workers are."""
    code = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from journalling import *\n"
        "j = Journal(Path(sys.argv[1]), run_id='r', incarnation='0' * 32, rank=0, host='here')\n"
        "j.append(Step, step_fields(1))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    j.append(Step, step_fields(2)); assert not j.append_event([(Gap, event_fields(2))]); sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "j.append(Step, step_fields(3))\n"
    )
    support = str(Path(journalling.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path), support],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert [record.step for record in ledger.of_type(tmp_path, Step)] == [1, 3], "exit without close still writes"


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    """Before the first step, not after a thousand."""
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="file"):
        make(tmp_path / "file" / "journal")


@pytest.mark.parametrize("delay", DELAYS)
def test_kill_9_loses_no_event_that_returned_and_no_row_older_than_50_ms(tmp_path: Path, delay: float) -> None:
    """
    Truth is what the process said before it died. 50 ms, plus what the machine took: a thread of the killed process
    that sleeps as the writer does reports how much it overslept.
    """
    script = Path(journalling.__file__)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(delay)
        killed = time.monotonic_ns()
        process.kill()
        said = [line.split() for line in (first + process.stdout.read()).splitlines() if line.count(b" ") == 3]

    rows = {record.step for record in ledger.of_type(tmp_path, Step)}
    events = {record.first_seq for record in ledger.of_type(tmp_path, Gap)}
    stolen = max(int(worst) for *_, worst in said)
    assert {int(number) for kind, number, *_ in said if kind == b"event"} <= events
    due = {
        int(number) for kind, number, at, _ in said if kind == b"step" and int(at) < killed - 50_000_000 - 2 * stolen
    }
    assert due <= rows
