"""The collector on real journals and the real engine: what is guaranteed about the data."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.collector.records import RUN, frame, gap, segment, segment_path, step

from firstbad.collector import InsertError, JournalMissing, Store, StoreFull
from firstbad.collector.batch import Batch
from firstbad.collector.collect import Progress, collect
from firstbad.collector.source import JournalFolder
from firstbad.collector.store import STAGING
from firstbad.schema import encode_record
from firstbad.schema.codec import encode_seal


@pytest.fixture(name="journal")
def _journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture(name="db")
def _db(tmp_path: Path) -> Path:
    return tmp_path / "db"


def _rows(db: Path, sql: str) -> list[tuple[Any, ...]]:
    with Store.open(db, purpose="test") as store:
        return store.query(sql).rows


def _line(base: Any, /, **changes: Any) -> bytes:
    """An encoded record with fields changed behind its model's back."""
    return json.dumps({**json.loads(encode_record(base)), **changes}).encode()


def test_values_that_are_not_finite_arrive_as_they_are_and_null_stays_unknown(journal: Path, db: Path) -> None:
    """NaN, Inf and -Inf are data; null is null; neither becomes the other, or 0."""
    losses = [float("nan"), float("inf"), float("-inf"), None, 0.0, 5e-324, 1.7e308]
    records = [
        step(i, loss=loss, loss_finite=None if loss is None else math.isfinite(loss)) for i, loss in enumerate(losses)
    ]
    segment_path(journal).write_bytes(segment(*records))

    collect(journal, db, once=True)

    got = _rows(db, "SELECT loss, total_grad_norm, loss_finite FROM steps ORDER BY step")
    assert [repr(row[0]) for row in got] == [repr(loss) for loss in losses]
    assert [row[1] for row in got] == [None] * len(losses)
    assert [row[2] for row in got] == [False, False, False, None, True, True, True]


def test_integers_out_of_range_become_dead_letters_and_never_wrap(journal: Path, db: Path) -> None:
    """The engine would store 2^64 as 0 and -1 as 2^64-1 without a word; the largest that fit do arrive."""
    good = step(3, batch_fingerprint=2**64 - 1, trainer_step=-(2**63), micro_steps=2**32 - 1)
    bad = [_line(step(i), **change) for i, change in enumerate([{"step": 2**64}, {"rank": -1}, {"micro_steps": 2**32}])]
    segment_path(journal).write_bytes(segment(*bad, good))

    counts = collect(journal, db, once=True)

    assert counts.dead_letters == {"bad_record": 3}
    assert _rows(db, "SELECT step, batch_fingerprint, trainer_step, micro_steps FROM steps") == [
        (3, 2**64 - 1, -(2**63), 2**32 - 1)
    ]
    details = [row[0] for row in _rows(db, "SELECT detail FROM dead_letter_records FINAL ORDER BY offset")]
    assert [name in detail for name, detail in zip(("step", "rank", "micro_steps"), details, strict=True)] == [True] * 3


def test_bad_lines_are_kept_byte_for_byte_with_their_place_and_reason(journal: Path, db: Path) -> None:
    """One bad line in a frame costs its neighbours nothing; file and offset lead back to it."""
    future = _line(step(1), version=99)
    lines = [
        (b"\xff\x00 not json", "bad_record"),
        (b"[]", "bad_record"),
        (_line(step(1), record="hologram"), "unknown_record"),
        (future, "unknown_record"),
        (_line(step(1), loss="0.5"), "bad_record"),
        (_line(step(1), action="explode"), "bad_record"),
        (b"[" * 100_000, "bad_record"),
    ]
    path = segment_path(journal)
    path.write_bytes(frame(step(0), *(line for line, _ in lines), step(2)) + encode_seal())
    content = path.read_bytes()

    counts = collect(journal, db, once=True)

    assert counts.records == {"step": 2}
    got = _rows(db, "SELECT file, offset, reason, hex(bytes) FROM dead_letter_records FINAL ORDER BY offset")
    assert [(row[2], bytes.fromhex(row[3])) for row in got] == [(reason, line) for line, reason in lines]
    for file, offset, _, data in got:
        assert file == f"node0/{path.name}"
        assert content[offset : offset + len(data) // 2] == bytes.fromhex(data)


def test_a_field_of_a_newer_agent_is_kept_in_extra(journal: Path, db: Path) -> None:
    """Additive evolution: what has no column yet is not dropped."""
    segment_path(journal).write_bytes(segment(_line(step(0), tomorrow={"a": [1, 2]}), step(1)))

    collect(journal, db, once=True)

    got = _rows(db, "SELECT step, extra FROM step_records FINAL ORDER BY step")
    assert json.loads(got[0][1]) == {"tomorrow": {"a": [1, 2]}}
    assert got[1][1] == ""


def test_the_same_bytes_read_again_change_nothing(journal: Path, db: Path) -> None:
    """A kill between the rows and the place that was reached: rows and dead letters come again and collapse."""
    path = segment_path(journal)
    path.write_bytes(segment(step(0), b"bad", step(1), gap(2), sealed=False) + bytes(50) + frame(step(3)))
    with Store.open(db, purpose="test", create=True) as store:
        store.migrate()
        batch = Batch()
        (found,) = JournalFolder(journal, {}).discover()
        portion = found.read()
        assert portion is not None
        batch.add(portion)
        for name, table in (*batch.record_tables(), *batch.letter_tables()):
            store.insert(name, table)
        # Killed here: the place reached is not stored.

    counts = collect(journal, db, once=True)
    collect(journal, db, once=True)

    assert counts.records == {"step": 3, "gap": 1}
    assert _rows(db, "SELECT count(), uniqExact(step) FROM steps") == [(3, 3)]
    assert _rows(db, "SELECT count() FROM gap_records FINAL") == [(1,)]
    assert _rows(db, "SELECT reason FROM dead_letter_records FINAL ORDER BY reason") == [
        ("bad_record",),
        ("zero_hole",),
    ]


def test_one_record_in_two_copies_is_one_row(journal: Path, db: Path) -> None:
    """The journal of a rank that was copied, or loaded under two names, counts once."""
    segment_path(journal, host="node0").write_bytes(segment(step(0), step(1)))
    segment_path(journal, host="copy").write_bytes(segment(step(0), step(1)))

    collect(journal, db, once=True)

    assert _rows(db, "SELECT count() FROM steps") == [(2,)]


def test_only_sealed_segments_that_are_on_disk_in_the_ledger_are_deleted(journal: Path, db: Path) -> None:
    """Unsealed ones stay, whoever wrote them; `keep` keeps all; a later run deletes what an earlier one loaded."""
    sealed, torn = segment_path(journal, number=0), segment_path(journal, number=1)
    room = segment_path(journal, lane="events")
    sealed.write_bytes(segment(step(0)))
    torn.write_bytes(segment(step(1), sealed=False) + frame(step(2))[:-5])
    room.write_bytes(segment(gap(0), sealed=False) + bytes(10_000))

    kept = collect(journal, db, once=True, keep=True)
    assert kept.segments_deleted == 0
    assert sealed.exists()
    counts = collect(journal, db, once=True)

    assert counts.segments_deleted == 1
    assert not counts.records, "nothing was loaded twice"
    assert [path.exists() for path in (sealed, torn, room)] == [False, True, True]
    assert _rows(db, "SELECT step FROM steps ORDER BY step") == [(0,), (1,)]


def test_what_the_engine_refuses_stays_in_the_journal(journal: Path, db: Path) -> None:
    """No row is diverted or dropped because the ledger is unfit: the collector ends with an error, and catches up."""
    path = segment_path(journal)
    path.write_bytes(segment(step(0), gap(1)))
    with Store.open(db, purpose="test", create=True) as store:
        store.migrate()
        store.command("ALTER TABLE gap_records RENAME COLUMN detail TO hidden")
    with pytest.raises(InsertError, match="gap_records"):
        collect(journal, db, once=True)
    assert path.exists()

    with Store.open(db, purpose="test") as store:
        store.command("ALTER TABLE gap_records RENAME COLUMN hidden TO detail")
    collect(journal, db, once=True)

    assert not path.exists()
    assert _rows(db, "SELECT (SELECT count() FROM steps), (SELECT count() FROM gap_records FINAL)") == [(1, 1)]


def test_a_full_disk_is_said_in_words_and_loses_nothing(journal: Path, db: Path) -> None:
    """ENOSPC from the kernel, then room again."""
    path = segment_path(journal)
    path.write_bytes(segment(step(0)))
    with Store.open(db, purpose="test", create=True) as store:
        store.migrate()
    (db / STAGING).symlink_to("/dev/full")
    with pytest.raises(StoreFull, match="no space left"):
        collect(journal, db, once=True)
    assert path.exists()

    collect(journal, db, once=True)

    assert _rows(db, "SELECT count() FROM steps") == [(1,)]


def test_segments_that_appear_and_grow_are_tailed_and_a_missing_folder_is_waited_for(journal: Path, db: Path) -> None:
    """A service may start before training does."""
    stop, seen = Event(), []
    waited = Event()

    def watch(progress: Progress) -> None:
        waited.set()
        seen.append((progress.waiting_for_journal, sum(progress.records.values())))

    errors: list[BaseException] = []

    def run() -> None:
        try:
            collect(journal, db, stop=stop, progress=watch, poll_seconds=0.02)
        except BaseException as error:
            errors.append(error)

    def until(count: int) -> None:
        deadline = time.monotonic() + 60
        while seen[-1][1] < count and time.monotonic() < deadline and not errors:
            time.sleep(0.01)
        assert seen[-1][1] == count

    thread = Thread(target=run)
    thread.start()
    try:
        assert waited.wait(60)
        first = segment_path(journal, 0)
        first.write_bytes(segment(step(0), sealed=False))
        until(1)
        with first.open("ab") as file:
            file.write(frame(step(1)))
        until(2)
        segment_path(journal, 1, host="node9").write_bytes(segment(step(0, 1)))
        until(3)
    finally:
        stop.set()
        thread.join(60)
    assert errors == []
    assert seen[0] == (True, 0)


def test_once_ends_although_ranks_go_on_writing(journal: Path, db: Path) -> None:
    """What was there at the start is loaded; a rank that writes all the time does not keep it from ending."""
    path = segment_path(journal)
    path.write_bytes(segment(*(step(number) for number in range(5)), sealed=False))
    written = 5

    def write_more(_: Progress) -> None:
        nonlocal written
        with path.open("ab") as file:
            file.write(frame(step(written)))
        written += 1

    counts = collect(journal, db, once=True, progress=write_more)

    assert 5 <= counts.records["step"] < written


def test_a_wrong_journal_path_is_an_error_and_makes_no_ledger(journal: Path, db: Path, tmp_path: Path) -> None:
    """`--once` on a folder that is not there, or on a file."""
    with pytest.raises(JournalMissing, match="no such folder"):
        collect(journal, db, once=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalMissing, match="not a folder"):
        collect(tmp_path / "file", db, once=True)
    assert not db.exists()


def test_foreign_files_are_left_alone_and_broken_segments_hurt_nobody(journal: Path, db: Path) -> None:
    """Other endings, folders and links are not segments; a .fbj may hold anything at all."""
    segment_path(journal, 0).write_bytes(segment(step(0)))
    host = journal / "node0"
    (host / "notes.txt").write_text("mine")
    (host / "folder.fbj").mkdir()
    (host / "link.fbj").symlink_to("/etc/passwd")
    (host / "dangling.fbj").symlink_to("nowhere")
    (host / "empty.fbj").write_bytes(b"")
    (host / "zeros.fbj").write_bytes(bytes(5000))
    (host / "noise.fbj").write_bytes(random.Random(1).randbytes(100_000))
    (host / "line\n\udcff.fbj").write_bytes(b"junk" + segment(step(1)))
    (journal / "loose.fbj").write_bytes(b"junk" + encode_seal() + b"after the seal")

    counts = collect(journal, db, once=True)

    assert counts.records == {"step": 2}
    assert counts.dead_letters == {"foreign_bytes": 3}
    left = sorted(path.name for path in (*host.iterdir(), *journal.glob("*.fbj")))
    assert left == ["dangling.fbj", "empty.fbj", "folder.fbj", "link.fbj", "noise.fbj", "notes.txt", "zeros.fbj"]


def _mutate(draw: random.Random, frames: list[bytes]) -> tuple[bytes, set[int]]:
    """The frames with something done to them, and the numbers of those left intact and to be found."""
    parts, intact = list(frames), set(range(len(frames)))
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(parts))
        kind = draw.choice(["flip", "cut", "zero", "insert", "length", "drop", "tail"])
        if kind == "insert":
            junk = draw.choice(
                [draw.randbytes(draw.randint(1, 300)), b"{}\n", bytes(4096), b"\xffFB\x01", encode_seal()]
            )
            parts[at] = junk + parts[at]
            continue
        if kind == "tail":
            parts[-1] += draw.choice([draw.randbytes(50), bytes(500)])
            continue
        intact.discard(at)
        part = bytearray(parts[at])
        if not part:
            continue
        place = draw.randrange(len(part))
        if kind == "flip":
            part[place] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del part[place:]
        elif kind == "zero":
            part[place:] = bytes(len(part) - place)
        elif kind == "length":
            part[5:9] = draw.randbytes(4)
        else:
            part.clear()
        parts[at] = bytes(part)
    return b"".join(parts), intact


def test_fuzzed_journals_crash_nothing_and_lose_no_good_neighbour(journal: Path, db: Path) -> None:
    """Sixty segments, each damaged in up to six places: every frame left intact is in the ledger, as it was."""
    draw = random.Random(3)
    expected = set()
    for rank in range(60):
        frames = [frame(step(number, rank)) for number in range(draw.randint(1, 30))]
        data, intact = _mutate(draw, frames)
        expected |= {(rank, number) for number in intact}
        segment_path(journal, rank).write_bytes(data + (encode_seal() if draw.random() < 0.5 else b""))

    counts = collect(journal, db, once=True)
    again = collect(journal, db, once=True)

    got = _rows(db, f"SELECT rank, step, loss FROM steps WHERE run_id = '{RUN}'")
    assert len(got) == len({row[:2] for row in got})
    assert expected <= {row[:2] for row in got}
    assert all(loss == 1 / (number + 1) for _, number, loss in got)
    assert sum(counts.dead_letters.values()) > 0
    assert not again.records
    assert not again.dead_letters


def test_parts_of_the_ledger_that_broke_on_disk_are_reported(journal: Path, db: Path) -> None:
    """The engine sets them aside at start without a word; their rows are gone, so somebody must say it."""
    segment_path(journal).write_bytes(segment(*(step(number) for number in range(100))))
    collect(journal, db, once=True)
    with Store.open(db, purpose="test") as store:
        (folder,) = store.query(
            "SELECT path FROM system.parts WHERE database = 'firstbad' AND table = 'step_records' AND active"
        ).rows[0]
    data = next(Path(folder).glob("data.bin"))
    data.write_bytes(data.read_bytes()[:10])

    counts = collect(journal, db, once=True)

    assert [name.split("/")[0] for name in counts.broken_parts] == ["step_records"]
