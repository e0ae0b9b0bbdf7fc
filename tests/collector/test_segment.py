"""The pure reader: intact frames are found whatever lies between them, and every byte is accounted for."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collector.records import frame, segment, step

from firstbad.collector.segment import describe, scan
from firstbad.collector.source import Portion, Segment
from firstbad.schema.codec import HEADER, MAGIC, MAX_PAYLOAD, encode_frame, encode_seal

# Payloads are ASCII, as the codec says; they need not be records here.
payloads = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=60).map(str.encode)
frames = payloads.map(lambda text: encode_frame([text]))


def _flip(frame_: bytes, bit: int) -> bytes:
    bit %= len(frame_) * 8
    changed = bytearray(frame_)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


junk = st.one_of(
    st.binary(min_size=1, max_size=80),
    st.integers(1, 5000).map(bytes),
    st.tuples(frames, st.integers(1, 72)).map(lambda pair: pair[0][: min(pair[1], len(pair[0]) - 1)]),
    st.tuples(frames, st.integers(0, 10_000)).map(lambda pair: _flip(*pair)),
    st.integers(0, 2**32 - 1).map(lambda length: HEADER.pack(MAGIC, 1, length, 7)),
    st.sampled_from([MAGIC, MAGIC[:2], MAGIC * 20, b'{"record":"step"}\n', "überall".encode()]),
    st.binary(max_size=300).map(lambda data: MAGIC + data),
)
pieces = st.lists(st.one_of(frames.map(lambda item: (True, item)), junk.map(lambda item: (False, item))), max_size=14)


def _expected(parts: list[tuple[bool, bytes]]) -> tuple[bytes, list[int], list[tuple[int, int]]]:
    """The bytes, where intact frames start, and the spans of junk that an intact frame follows."""
    data, starts, damage = b"", [], []
    junk_from = -1
    for intact, item in parts:
        if intact:
            if junk_from >= 0:
                damage.append((junk_from, len(data)))
            junk_from = -1
            starts.append(len(data))
        elif junk_from < 0:
            junk_from = len(data)
        data += item
    return data, starts, damage


@given(pieces)
@settings(deadline=None, max_examples=400)
def test_every_intact_frame_is_found_and_only_what_lies_before_one_is_damage(parts: list[tuple[bool, bytes]]) -> None:
    """Junk before an intact frame is one damaged span; junk at the end is not yet decided."""
    data, starts, damage = _expected(parts)

    found = scan(data, at_end=True)

    assert starts == [item.start for item in found.frames]
    assert damage == [(span.start, span.end) for span in found.damage]
    assert found.consumed == (found.frames[-1].end if found.frames else 0)


@given(pieces)
@settings(deadline=None, max_examples=200)
def test_a_seal_turns_what_lies_before_and_after_it_into_damage(parts: list[tuple[bool, bytes]]) -> None:
    """A sealed segment is decided to its last byte; only zero bytes after the seal are unused room."""
    data, starts, damage = _expected([*parts, (True, encode_seal())])

    found = scan(data + bytes(100), at_end=True)

    assert starts[:-1] == [item.start for item in found.frames]
    assert damage == [(span.start, span.end) for span in found.damage]
    assert found.sealed
    assert found.consumed == len(data) + 100
    assert scan(data + b"foreign", at_end=True).damage[-1].end == len(data) + 7


def _drain(reader: Segment) -> list[Portion]:
    portions = []
    while portion := reader.read():
        portions.append(portion)
    return portions


def _content(portions: list[Portion]) -> tuple[list[tuple[int, bytes]], bytes]:
    lines = [(line.offset, line.data) for portion in portions for line in portion.lines]
    letters = b"".join(letter.data for portion in portions for letter in portion.letters)
    return lines, letters


@given(pieces, st.lists(st.integers(0, 10_000), max_size=6), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=200)
def test_a_file_read_while_it_grows_gives_what_it_gives_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[bool, bytes]],
    cuts: list[int],
    sealed: bool,
    restart: bool,
) -> None:
    """Reading after every growth, through small windows, with or without a restart in between, changes nothing."""
    data, starts, damage = _expected([*parts, (True, encode_seal())] if sealed else parts)
    if sealed:
        starts.pop()
    path = tmp_path_factory.mktemp("grow") / "a.fbj"
    path.write_bytes(b"")
    reader = Segment(path, "a.fbj", window=64)
    portions: list[Portion] = []
    written = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        with path.open("ab") as file:
            file.write(data[written:cut])
        written = cut
        portions += _drain(reader)
        if restart:
            reader = Segment(path, "a.fbj", reader.position, window=64)

    lines, letters = _content(portions)

    whole = scan(data, at_end=True)
    assert letters == b"".join(data[start:end] for start, end in damage)
    assert [offset for offset, _ in lines] == sorted(offset for offset, _ in lines)
    assert b"".join(line for _, line in lines) == b"".join(item.payload.replace(b"\n", b"") for item in whole.frames)
    assert reader.position.offset == whole.consumed
    assert reader.finished() == sealed
    for portion in portions:
        assert portion.position.offset <= len(data)


def test_room_that_was_allocated_and_not_used_is_not_damage(tmp_path: Path) -> None:
    """Zero bytes at the end of an events segment mean not yet; a frame written into them is then read."""
    path = tmp_path / "events.fbj"
    first, second = frame(step(0)), frame(step(1))
    path.write_bytes(first + bytes(4096))
    reader = Segment(path, "events.fbj")
    before = _drain(reader)
    with path.open("r+b") as file:
        file.seek(len(first))
        file.write(second + encode_seal())
    after = _drain(reader)

    assert [len(_content(portions)[0]) for portions in (before, after)] == [1, 1]
    assert _content(before)[1] + _content(after)[1] == b""
    assert reader.finished()


@pytest.mark.parametrize("room", [100, 5_000_000, 40_000_000])
def test_unused_room_after_the_seal_is_no_damage_however_long(tmp_path: Path, room: int) -> None:
    """Only bytes that are not zero are somebody's."""
    path = tmp_path / "events.fbj"
    path.write_bytes(segment(step(0)) + bytes(room))
    reader = Segment(path, "events.fbj")
    assert _content(_drain(reader))[1] == b""
    assert reader.finished()

    path.write_bytes(segment(step(0)) + bytes(room) + b"somebody")
    assert _content(_drain(Segment(path, "events.fbj")))[1] == bytes(room) + b"somebody"


def test_a_hole_of_zero_pages_before_an_intact_frame_is_kept(tmp_path: Path) -> None:
    """Pages that a crash left empty between frames are damage, said to be a hole."""
    path = tmp_path / "hole.fbj"
    path.write_bytes(frame(step(0)) + bytes(8192) + frame(step(2)))
    portions = _drain(Segment(path, "hole.fbj"))

    (letter,) = [letter for portion in portions for letter in portion.letters]

    assert (letter.reason, len(letter.data)) == ("zero_hole", 8192)
    assert len(_content(portions)[0]) == 2


def test_a_length_field_gone_mad_hides_no_neighbour(tmp_path: Path) -> None:
    """A header that claims up to 4 GiB is damage; frames behind it are read, in a file larger than any window too."""
    path = tmp_path / "huge.fbj"
    for length in (MAX_PAYLOAD, MAX_PAYLOAD + 1, 2**32 - 1):
        forged = HEADER.pack(MAGIC, 1, length, 0)
        for filler in (b"", b"x" * (MAX_PAYLOAD + 5_000_000)):
            path.write_bytes(frame(step(0)) + forged + filler + frame(step(1)) + encode_seal())
            portions = _drain(Segment(path, "huge.fbj"))
            lines, letters = _content(portions)
            assert len(lines) == 2
            assert forged + filler == letters
            assert all(len(letter.data) <= 1024 * 1024 for portion in portions for letter in portion.letters)


def test_many_forged_headers_cost_no_more_than_their_bytes(tmp_path: Path) -> None:
    """A megabyte of headers that each claim megabytes is got through (a checksum for each would take minutes)."""
    path = tmp_path / "forged.fbj"
    forged = HEADER.pack(MAGIC, 1, 3_000_000, 1) * 80_000
    path.write_bytes(forged + bytes(4_000_000) + frame(step(1)))

    lines, letters = _content(_drain(Segment(path, "forged.fbj")))

    assert len(lines) == 1
    assert len(forged) + 4_000_000 == len(letters)


_PWRITER = """
import os, sys
from firstbad.schema.codec import encode_frame, encode_seal
fd, at = os.open(sys.argv[1], os.O_WRONLY), 0
for number in range(4000):
    data = encode_frame([b"%d " % number + b"x" * (number % 9000)])
    os.pwrite(fd, data, at)
    at += len(data)
os.pwrite(fd, encode_seal(), at)
"""


def test_reading_allocated_room_while_it_is_written_sees_no_damage(tmp_path: Path) -> None:
    """A look during a write can show a later page and not an earlier one; that is no damage."""
    path = tmp_path / "events.fbj"
    path.write_bytes(b"")
    os.truncate(path, 24_000_000)
    reader = Segment(path, "events.fbj")
    writer = subprocess.Popen([sys.executable, "-c", _PWRITER, path])
    portions: list[Portion] = []
    deadline = time.monotonic() + 60
    while not reader.finished() and time.monotonic() < deadline:
        portions += _drain(reader)
    assert writer.wait(60) == 0

    lines, letters = _content(portions)
    assert [line.split()[0] for _, line in lines] == [b"%d" % number for number in range(4000)]
    assert letters == b""


def test_a_segment_that_shrank_or_was_replaced_says_so_and_is_read_again(tmp_path: Path) -> None:
    """The rows come again, which is harmless, and a dead letter tells what happened."""
    path = tmp_path / "a.fbj"
    path.write_bytes(segment(step(0), step(1), sealed=False))
    reader = Segment(path, "a.fbj")
    _drain(reader)

    path.write_bytes(segment(step(0), sealed=False))
    shrunk = _drain(reader)
    assert [letter.reason for portion in shrunk for letter in portion.letters] == ["truncated_segment"]
    assert len(_content(shrunk)[0]) == 1

    other = tmp_path / "b"
    other.write_bytes(segment(step(7), step(8), step(9), sealed=False))
    other.rename(path)
    replaced = _drain(reader)
    assert [letter.reason for portion in replaced for letter in portion.letters] == ["replaced_segment"]
    assert len(_content(replaced)[0]) == 3


def test_a_position_that_was_stored_under_another_inode_is_not_trusted(tmp_path: Path) -> None:
    """After a restart the same holds: another file under the name is read from its start."""
    path = tmp_path / "a.fbj"
    path.write_bytes(segment(step(0)))
    reader = Segment(path, "a.fbj")
    _drain(reader)
    stale = replace(reader.position, inode=reader.position.inode + 1)

    again = _drain(Segment(path, "a.fbj", stale))

    assert len(_content(again)[0]) == 1


@pytest.mark.parametrize(
    ("data", "length", "reason"),
    [
        (bytes(10), 10, "zero_hole"),
        (b"hello", 5, "foreign_bytes"),
        (frame(step(0))[:30], 30, "torn_frame"),
        (MAGIC, 4, "torn_frame"),
        (_flip(frame(step(0)), 900), len(frame(step(0))), "damaged_frame"),
        (MAGIC + struct.pack("<BII", 9, 2**31, 0), 13, "damaged_frame"),
    ],
)
def test_damage_is_described_by_one_word(data: bytes, length: int, reason: str) -> None:
    """A person sees at a glance what sort of damage it is."""
    assert reason == describe(data, length)
