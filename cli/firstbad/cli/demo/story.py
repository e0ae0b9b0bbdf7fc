"""What the demo asks the ledger, in SQL, through the public views only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_ID = "demo"

INCIDENT_SQL = f"""\
SELECT run_id, step, micro_step, rank, first_bad_stage,
       valid_tokens, shard_id, sample_ids, action, last_good_step
FROM first_bad_steps
WHERE run_id = '{RUN_ID}'
ORDER BY step
LIMIT 1"""  # noqa: S608  # a constant

_BAD_STEPS_SQL = f"""\
SELECT step, micro_step, rank, first_bad_stage, valid_tokens, shard_id, sample_ids, action, applied, conflict
FROM bad_steps WHERE run_id = '{RUN_ID}' ORDER BY step"""  # noqa: S608

_ROWS_SQL = f"SELECT count() FROM steps WHERE run_id = '{RUN_ID}'"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Story:
    """The answers: the first incident (None when the ledger knows none), all bad steps, and how many step rows."""

    incident: dict[str, Any] | None
    bad_steps: list[dict[str, Any]]
    step_rows: int
    loaded: int
    """Records that the collector loaded."""


def tell(journal: Path, db: Path) -> Story:
    """
    Load the journal into the ledger at `db` and ask it.

    Raises:
        StoreError, JournalMissing: as the collector raises them.
    """
    from firstbad.collector import Store
    from firstbad.collector.collect import collect

    counts = collect(journal, db, once=True)
    with Store.open(db, purpose="demo") as store:
        incidents = store.query(INCIDENT_SQL).dicts()
        return Story(
            incident=incidents[0] if incidents else None,
            bad_steps=store.query(_BAD_STEPS_SQL).dicts(),
            step_rows=int(store.query(_ROWS_SQL).rows[0][0]),
            loaded=sum(counts.records.values()),
        )
