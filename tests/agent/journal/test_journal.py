"""The laws of the journal inside a process: dense, ordered, whole segments, rotation, bad records, real signals."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import ledger
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journalling import admitted, event_fields, holes, open_journal, step_fields
from played import dense

import firstbad.agent.journal
from firstbad.schema import FrameError, Gap, GapReason, Step, decode_record
from firstbad.schema.codec import MAX_PAYLOAD, FrameKind, read_frame


def frames(segment: Path) -> list[tuple[FrameKind, list[int]]]:
    """Every frame of a sealed segment: its kind and the numbers of its records; nothing may lie between or behind."""
    buffer, offset, found = segment.read_bytes(), 0, []
    while offset < len(buffer):
        frame = read_frame(buffer, offset)
        assert frame is not None
        lines = frame.payload.split(b"\n") if frame.kind is FrameKind.RECORDS else []
        found.append((frame.kind, [decode_record(line).seq for line in lines]))
        offset = frame.end
    return found


def test_the_door_exports_what_it_says() -> None:
    """The public names are sorted and real."""
    names = firstbad.agent.journal.__all__

    assert sorted(names) == names
    assert all(hasattr(firstbad.agent.journal, name) for name in names)


def test_everything_handed_over_is_there_in_order_and_dense(tmp_path: Path) -> None:
    """Rows and events of several threads share one sequence without holes; in a lane, numbers only grow."""
    journal = open_journal(tmp_path)

    def work(base: int) -> None:
        for number in range(50):
            journal.append(Step, step_fields(base + number))
            if number % 10 == 0:
                assert journal.append_event([(Gap, event_fields(base + number))] * 2, wait_seconds=30)

    threads = [threading.Thread(target=work, args=(base * 1000,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.close([(Gap, event_fields(9))], wait_seconds=30)

    records = ledger.records(tmp_path)
    assert len(records) == 4 * (50 + 10) + 1
    assert dense(records)
    assert {record.run_id for record in records} == {"run/1"}
    assert all(record.loss != record.loss for record in records if isinstance(record, Step)), "NaN stays NaN"
    assert (journal.counters.records_written, journal.counters.records_dropped) == (len(records), 0)
    for lane in ("events", "steps"):
        order = [seq for path in sorted(tmp_path.glob(f"here/*-{lane}-*")) for _, seqs in frames(path) for seq in seqs]
        assert order == sorted(order)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(["step", "event", "pair", "flush"]), max_size=60), st.integers(300, 3000))
def test_any_interleaving_with_any_rotation_decodes_to_the_same_records(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str], segment_bytes: int
) -> None:
    """Segments end at any size, also below that of a frame; each is sealed and whole."""
    folder = tmp_path_factory.mktemp("journal")
    journal = open_journal(folder, segment_bytes=segment_bytes, event_room=segment_bytes // 2)
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
    assert all(frames(segment)[-1][0] is FrameKind.SEAL for segment in folder.glob("here/*.fbj"))


def test_a_flush_covers_the_events_before_it(tmp_path: Path) -> None:
    """Also those for which nobody waited."""
    journal = open_journal(tmp_path)
    for number in range(20):
        journal.append_event([(Gap, event_fields(number))], wait_seconds=0)
        assert journal.flush(30)
        assert len(ledger.of_type(tmp_path, Gap)) == number + 1
    journal.close()


def test_a_closed_segment_ends_in_a_seal_and_holds_nothing_else(tmp_path: Path) -> None:
    """Allocated room that was not used is given back."""
    journal = open_journal(tmp_path)
    journal.append_event([(Gap, event_fields(1))])
    journal.append(Step, step_fields(1))
    journal.close()

    for segment in tmp_path.glob("here/*.fbj"):
        assert [kind for kind, _ in frames(segment)] == [FrameKind.RECORDS, FrameKind.SEAL]


def test_an_open_events_segment_shows_its_room_as_zeros(tmp_path: Path) -> None:
    """A reader sees the frames, then nothing yet."""
    journal = open_journal(tmp_path)
    journal.append_event([(Gap, event_fields(1))], wait_seconds=30)

    (segment,) = tmp_path.glob("here/*-events-000000.fbj")
    buffer = segment.read_bytes()
    frame = read_frame(buffer, 0)
    assert frame is not None
    assert len(buffer) == 1024 * 1024
    assert buffer[frame.end :].strip(b"\0") == b""
    with pytest.raises(FrameError):
        read_frame(buffer, frame.end)
    journal.close()


def test_events_that_use_up_their_room_get_room_again(tmp_path: Path) -> None:
    """No event goes beyond what is allocated; one that is larger than that gets as much as it needs."""
    journal = open_journal(tmp_path, event_room=4096)
    for number in range(40):
        assert journal.append_event([(Gap, event_fields(number))], wait_seconds=30)
        assert max(tmp_path.glob("here/*-events-*")).stat().st_size == 4096
    assert journal.append_event([(Gap, event_fields(40) | {"detail": "x" * 10_000})], wait_seconds=30)
    assert max(tmp_path.glob("here/*-events-*")).stat().st_size > 10_000
    journal.close()

    assert [gap.first_seq for gap in ledger.of_type(tmp_path, Gap)] == list(range(41))


def test_rows_of_any_size_find_frames(tmp_path: Path) -> None:
    """Rows with the longest sample names, that wait together, would exceed the largest frame; each gets its own."""
    names = tuple(f"{number:04}" + "\u00fc" * 1_020 for number in range(64))
    journal = open_journal(tmp_path)
    for number in range(45):
        journal.append(Step, step_fields(number, 1.0) | {"sample_ids": names})
    assert journal.close(wait_seconds=60)

    assert [record.step for record in ledger.of_type(tmp_path, Step)] == list(range(45))
    sizes = [path.stat().st_size for path in tmp_path.glob("here/*-steps-*")]
    assert sum(sizes) > MAX_PAYLOAD


def test_a_record_that_breaks_its_schema_is_dropped_counted_and_admitted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug of the agent's own must not take the neighbours along; it is told once, by the agent's own logger."""
    journal = open_journal(tmp_path)
    with caplog.at_level(logging.WARNING):
        for number in (0, 3):
            items = [(Gap, event_fields(number)), (Gap, {"first_seq": -1}), (Gap, event_fields(number + 2))]
            assert journal.append_event(items, wait_seconds=30)
        journal.append(Step, step_fields(1) | {"seq": 5})
        journal.close()

    assert holes(tmp_path) == admitted(tmp_path) >= {1, 4}
    assert len(holes(tmp_path)) == journal.counters.records_dropped == 3
    assert {gap.reason for gap in ledger.of_type(tmp_path, Gap) if gap.detail != "test"} == {GapReason.INVALID}
    assert [record.name for record in caplog.records] == ["firstbad.agent"]
    assert "first_seq" in caplog.text and "-1" in caplog.text


class Unspeakable:
    """As a tensor on a busy device: nobody may ask for its text."""

    asked = False

    def __repr__(self) -> str:
        Unspeakable.asked = True
        return "text"


def test_a_bad_value_is_named_by_its_type_and_never_asked_for_its_text(tmp_path: Path) -> None:
    """The text of a tensor on a GPU waits for the GPU."""
    journal = open_journal(tmp_path)
    journal.append(Step, step_fields(1) | {"learning_rate": Unspeakable()})
    journal.close()

    (gap,) = ledger.of_type(tmp_path, Gap)
    assert gap.detail is not None and "learning_rate" in gap.detail and "Unspeakable" in gap.detail
    assert not Unspeakable.asked


def test_a_handler_that_raises_in_the_scripts_logging_does_not_end_the_writer(tmp_path: Path) -> None:
    """Logging belongs to the script."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no")

    logger, handler = logging.getLogger("firstbad.agent"), Broken()
    logger.addHandler(handler)
    try:
        journal = open_journal(tmp_path)
        journal.append(Step, {})
        assert journal.append_event([(Gap, event_fields(1))], wait_seconds=30)
        assert journal.close(wait_seconds=30)
    finally:
        logger.removeHandler(handler)


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    """Before the first step, not after a thousand."""
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="file"):
        open_journal(tmp_path / "file" / "journal")


def test_a_segment_of_somebody_else_is_never_written(tmp_path: Path) -> None:
    """Two journals under one name: the second is refused, the first is as it was."""
    journal = open_journal(tmp_path)
    with pytest.raises(FileExistsError):
        open_journal(tmp_path)
    journal.append(Step, step_fields(1))
    assert journal.close(wait_seconds=30)

    assert [record.step for record in ledger.of_type(tmp_path, Step)] == [1]


def test_closing_twice_and_handing_over_afterwards_is_harmless(tmp_path: Path) -> None:
    """Whoever ends the run ends it; the others notice nothing."""
    journal = open_journal(tmp_path)
    assert journal.close(wait_seconds=30)
    assert journal.close([(Gap, event_fields(1))])
    journal.append(Step, step_fields(1))
    assert not journal.append_event([(Gap, event_fields(1))])
    assert journal.flush()

    assert ledger.records(tmp_path) == []
