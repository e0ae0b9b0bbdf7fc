"""
A stand-in for training ranks, for tests that kill the collector: writes known step rows as agents do, until its
standard input is closed; then seals, and prints how many it wrote.

    python writer.py JOURNAL RANKS
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from firstbad.schema.codec import encode_seal

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.collector.records import frame, segment_path, step

ROWS_PER_SEGMENT = 150
ROOM = 64 * 1024


class Rank:
    """Appends to a steps lane that rotates, and now and then to an events lane with allocated room."""

    def __init__(self, journal: Path, rank: int) -> None:
        self.journal, self.rank, self.number = journal, rank, 0
        self.steps = self._open("steps", 0)
        self.events = self._open("events", 0)
        os.posix_fallocate(self.events, 0, ROOM)
        self.events_end = 0

    def _open(self, lane: str, number: int) -> int:
        return os.open(segment_path(self.journal, self.rank, lane, number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)

    def write(self, number: int) -> None:
        """One row; each tenth goes to the events lane, in two writes, so that a reader can see it torn."""
        data = frame(step(number, self.rank))
        if number % 10 == 0 and self.events_end + 2 * len(data) < ROOM:
            half = len(data) // 2
            os.pwrite(self.events, data[:half], self.events_end)
            os.pwrite(self.events, data[half:], self.events_end + half)
            self.events_end += len(data)
        else:
            os.write(self.steps, data)
        if number % ROWS_PER_SEGMENT == ROWS_PER_SEGMENT - 1:
            os.write(self.steps, encode_seal())
            os.close(self.steps)
            self.number += 1
            self.steps = self._open("steps", self.number)

    def close(self) -> None:
        """Seal both lanes."""
        os.write(self.steps, encode_seal())
        os.pwrite(self.events, encode_seal(), self.events_end)


def main() -> None:
    """Write until standard input ends."""
    ranks = [Rank(Path(sys.argv[1]), rank) for rank in range(int(sys.argv[2]))]
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for rank in ranks:
            rank.write(number)
        number += 1
        time.sleep(0.004)
    for rank in ranks:
        rank.close()
    print(number)


main()
