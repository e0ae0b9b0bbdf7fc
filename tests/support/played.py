"""What a drill left behind, for tests to look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ledger

from firstbad.schema import Record


class Played:
    """What a drill left behind: each rank's own account, and the records."""

    def __init__(self, ranks: list[dict[str, Any]], journal: Path) -> None:
        self.ranks = ranks
        self.records = ledger.records(journal)

    def of(self, model: type[Any]) -> list[Any]:
        """The records of one type, by rank and seq."""
        return [record for record in self.records if type(record) is model]

    def one(self, name: str) -> Any:
        """A value that every rank must agree on."""
        values = [rank[name] for rank in self.ranks]
        assert all(value == values[0] for value in values), f"ranks differ in {name}: {values}"
        return values[0]


Play = Callable[..., Played]


def dense(records: list[Record]) -> bool:
    """Every rank's sequence starts at 0 and has no hole."""
    ranks = {record.rank for record in records}
    return all(
        [record.seq for record in records if record.rank == rank]
        == list(range(sum(record.rank == rank for record in records)))
        for rank in ranks
    )
