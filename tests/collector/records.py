"""Records and segment bytes for the collector's tests, made with the real codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firstbad.schema import Gap, Record, Step, encode_frame, encode_record
from firstbad.schema.codec import encode_seal

RUN = "run-a"
INCARNATION = "0" * 31 + "1"
HOST = "node0"


def envelope(rank: int = 0, seq: int = 0, **changes: Any) -> dict[str, Any]:
    """Envelope fields of one record."""
    return {
        "run_id": RUN,
        "incarnation": INCARNATION,
        "rank": rank,
        "seq": seq,
        "ts": 1_700_000_000_000_000 + seq,
        "host": HOST,
        **changes,
    }


def step(number: int, rank: int = 0, **changes: Any) -> Step:
    """A good step row."""
    fields: dict[str, Any] = {
        **envelope(rank, number),
        "step": number,
        "applied_step": number + 1,
        "micro_steps": 1,
        "loss": 1.0 / (number + 1),
        "loss_finite": True,
        "action": "apply",
        "skip_count": 0,
        "degraded": False,
        **changes,
    }
    return Step.model_validate(fields, strict=False)


def gap(seq: int, rank: int = 0, **changes: Any) -> Gap:
    """A gap report."""
    fields: dict[str, Any] = {
        **envelope(rank, seq),
        "first_seq": 1,
        "last_seq": 2,
        "dropped": 2,
        "reason": "queue_full",
        **changes,
    }
    return Gap.model_validate(fields, strict=False)


def frame(*records: Record | bytes) -> bytes:
    """One frame; bytes are taken as already encoded lines."""
    return encode_frame([item if isinstance(item, bytes) else encode_record(item) for item in records])


def segment(*records: Record | bytes, sealed: bool = True) -> bytes:
    """A segment with one record per frame."""
    return b"".join(frame(item) for item in records) + (encode_seal() if sealed else b"")


def segment_path(journal: Path, rank: int = 0, lane: str = "steps", number: int = 0, host: str = HOST) -> Path:
    """Where the agent would put a segment; makes the folder."""
    path = journal / host / f"{RUN}-{INCARNATION}-r{rank}-p{1000 + rank}-{lane}-{number:06d}.fbj"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
