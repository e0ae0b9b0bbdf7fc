"""The journal without space: its own bound, a full queue, a full disk. Rows stop, events go on, all is admitted."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import journalling
import ledger
import pytest
from journalling import admitted, event_fields, holes, open_journal, step_fields

from firstbad.agent.journal.space import bound
from firstbad.schema import Gap, GapReason, Step


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "firstbad-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only a user who may mount can fill a disk of its own; a limit on file size is tested instead")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def until(condition: Callable[[], bool]) -> None:
    """Poll for a condition."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fill(folder: Path) -> Path:
    """Take all the space that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return filler


def test_past_its_bound_rows_stop_and_are_admitted_while_events_go_on(tmp_path: Path) -> None:
    """What is missing is exactly what the Gap records say."""
    journal = open_journal(tmp_path, max_bytes=20_000)
    for number in range(200):
        journal.append(Step, step_fields(number))
    assert journal.append_event([(Step, step_fields(777))], wait_seconds=30)
    journal.close()

    assert 777 in {record.step for record in ledger.of_type(tmp_path, Step)}
    assert holes(tmp_path) == admitted(tmp_path) != set()
    assert {gap.reason for gap in ledger.of_type(tmp_path, Gap)} == {GapReason.JOURNAL_FULL}
    assert journal.counters.records_dropped == len(holes(tmp_path))


def test_admitting_what_was_dropped_takes_no_space_per_row(tmp_path: Path) -> None:
    """A hole that goes on growing is one Gap, however slowly it grows; otherwise the bound would bound nothing."""
    journal = open_journal(tmp_path, max_bytes=20_000)
    for number in range(200):
        journal.append(Step, step_fields(number))
    assert journal.flush(30)
    for number in range(200, 230):
        journal.append(Step, step_fields(number))
        assert journal.flush(30)
    journal.close()

    assert len(ledger.of_type(tmp_path, Gap)) <= 2
    assert holes(tmp_path) == admitted(tmp_path)


def test_rows_resume_when_segments_were_loaded_and_deleted(tmp_path: Path) -> None:
    """At its bound the journal has ended segments to offer, and notices when they are gone."""
    journal = open_journal(tmp_path / "journal", max_bytes=20_000)
    number = 0

    def one_more() -> bool:
        nonlocal number
        number += 1
        journal.append(Step, step_fields(number))
        assert journal.flush(30)
        return journal.counters.records_dropped > 0

    until(one_more)
    *ended, _ = sorted((tmp_path / "journal" / "here").glob("*-steps-*"))
    assert ended
    (tmp_path / "loaded" / "here").mkdir(parents=True)
    for segment in ended:
        shutil.move(segment, tmp_path / "loaded" / "here")

    def resumed() -> bool:
        before = journal.counters.records_written
        one_more()
        return journal.counters.records_written > before

    until(resumed)
    journal.close([(Gap, event_fields(0))])
    shutil.copytree(tmp_path / "loaded", tmp_path / "journal", dirs_exist_ok=True)

    assert holes(tmp_path / "journal") == admitted(tmp_path / "journal")
    last = ledger.records(tmp_path / "journal")[-1]
    assert isinstance(last, Gap) and last.detail == "test", "what close was given comes last, after what was dropped"


def test_a_full_queue_drops_rows_and_admits_them(tmp_path: Path) -> None:
    """The training thread never waits."""
    journal = open_journal(tmp_path, queue_size=10)
    for number in range(5000):
        journal.append(Step, step_fields(number))
    journal.close(wait_seconds=30)

    assert holes(tmp_path) == admitted(tmp_path) != set()
    assert {gap.reason for gap in ledger.of_type(tmp_path, Gap)} == {GapReason.QUEUE_FULL}


def test_a_full_disk_stops_rows_then_events_and_loses_no_event(small_disk: Path) -> None:
    """Events have their room; when it is used up they wait, are counted as late, and are written at last."""
    journal = open_journal(small_disk, event_room=8192)
    journal.append(Step, step_fields(0))
    assert journal.flush(30)
    filler = fill(small_disk)
    for number in range(1, 200):
        journal.append(Step, step_fields(number))
    assert journal.flush(30)
    assert journal.counters.records_dropped > 100

    number = 1000
    assert journal.append_event([(Gap, event_fields(number))], wait_seconds=30), "events have their room"
    while journal.append_event([(Gap, event_fields(number)), (Gap, {"first_seq": -1})], wait_seconds=0.5):
        number += 1
    assert number > 1010
    assert journal.counters.event_waits_timed_out == 1
    dropped = journal.counters.records_dropped
    assert not journal.append_event([(Gap, event_fields(number + 1))], wait_seconds=0.3)
    assert journal.counters.records_dropped == dropped, "trying again counts nothing twice"

    filler.unlink()
    assert journal.append_event([(Gap, event_fields(number + 2))], wait_seconds=30)
    journal.append(Step, step_fields(300))
    assert journal.close(wait_seconds=30)

    events = [gap.first_seq for gap in ledger.of_type(small_disk, Gap) if gap.detail == "test"]
    assert events == [1000, *range(1000, number + 3)]
    assert ledger.of_type(small_disk, Step)[-1].step == 300, "rows resume"
    assert holes(small_disk) == admitted(small_disk)


def test_a_process_whose_disk_is_full_ends_nevertheless(small_disk: Path) -> None:
    """Neither the exit flush nor the writer keeps a process alive."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from journalling import *\n"
        "j = open_journal(Path(sys.argv[1]), event_room=0)\n"
        "f = open(sys.argv[1] + '/filler', 'wb', buffering=0)\n"
        "try:\n"
        "    while f.write(b'x' * 4096): pass\n"
        "except OSError: pass\n"
        "assert not j.append_event([(Gap, event_fields(1))], wait_seconds=0.1)\n"
    )
    support = str(Path(journalling.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, str(small_disk), support], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "No space left" in done.stderr


FILE_LIMIT = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from journalling import *
journal = open_journal(Path(sys.argv[1]), event_room=65536)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
for number in range(300):
    journal.append(Step, step_fields(number))
assert journal.flush(10)
(steps,) = Path(sys.argv[1]).glob("here/*-steps-*")
print(steps.stat().st_size)
assert journal.append_event([(Gap, event_fields(5))], wait_seconds=10), "events have their room"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for number in range(1000, 1010):
    journal.append(Step, step_fields(number))
assert journal.close()
"""


def test_a_write_that_fails_half_way_leaves_whole_frames_and_rows_resume(tmp_path: Path) -> None:
    """A real limit on file size: write(2) takes a part, then none; the part is cut off again."""
    support = str(Path(journalling.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(tmp_path), support], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40_000
    steps = {record.step for record in ledger.of_type(tmp_path, Step)}
    assert set(range(1000, 1010)) <= steps
    assert holes(tmp_path) == admitted(tmp_path) != set()


def test_in_memory_the_ranks_of_a_host_share_a_quarter_of_what_is_free(small_disk: Path) -> None:
    """Training needs that memory too."""
    free = shutil.disk_usage(small_disk).free

    assert bound(small_disk) == free // 4
    assert bound(small_disk, 8) == free // 32
