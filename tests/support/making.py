"""Valid records for tests, with as little to say as possible."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from firstbad.schema import Evidence, Gap, Record, RunEnd, RunStart, Step, Testimony, Verdict

T0 = 1_700_000_000_000_000
"""2023-11-14 22:13:20 UTC in microseconds; record times count up from here."""
FIRST, SECOND = "0" * 31 + "1", "0" * 31 + "2"
"""Two incarnations, in order of time."""


def event(step: int) -> str:
    """An event id for a step."""
    return f"{step:032x}"


class Maker:
    """Makes records of one run with dense sequence numbers per rank, one microsecond apart."""

    def __init__(self, run_id: str = "run-a", incarnation: str = FIRST, start: int = T0) -> None:
        self.run_id, self.incarnation, self.start = run_id, incarnation, start
        self._seq: defaultdict[int, int] = defaultdict(int)

    def skip_seq(self, rank: int, count: int = 1) -> None:
        """Leave a hole in a rank's sequence."""
        self._seq[rank] += count

    def _make(self, model: type[Any], rank: int, fields: dict[str, Any], changes: dict[str, Any]) -> Any:
        seq = changes.pop("seq", self._seq[rank])
        self._seq[rank] = seq + 1
        envelope = {
            "run_id": self.run_id,
            "incarnation": self.incarnation,
            "rank": rank,
            "seq": seq,
            "ts": self.start + seq,
            "host": f"node{rank // 2}",
        }
        return model.model_validate({**envelope, **fields, **changes}, strict=False)

    def run_start(self, rank: int = 0, **changes: Any) -> RunStart:
        """A run start on CPU under policy skip."""
        fields = {
            "world_size": 2,
            "pid": 100 + rank,
            "device": "cpu",
            "argv": ("train.py",),
            "agent_version": "0.1.0",
            "torch_version": "2.15.0",
            "python_version": "3.11.7",
            "policy": "skip",
            "max_consecutive_skips": 10,
            "max_skip_ratio": 0.05,
            "steered": True,
        }
        return self._make(RunStart, rank, fields, changes)  # type: ignore[no-any-return]

    def step(self, step: int, rank: int = 0, **changes: Any) -> Step:
        """A good step row."""
        fields = {
            "step": step,
            "applied_step": step + 1,
            "micro_steps": 2,
            "loss": 1.5,
            "loss_finite": True,
            "action": "apply",
            "skipped_step": False,
            "skip_count": 0,
            "degraded": False,
        }
        return self._make(Step, rank, fields, changes)  # type: ignore[no-any-return]

    def verdict(self, step: int, rank: int = 0, **changes: Any) -> Verdict:
        """A verdict on rank 1's loss, skipped; opens its own incident."""
        fields = {
            "event_id": event(step),
            "incident_id": event(step),
            "kind": "fault",
            "step": step,
            "origin_step": step,
            "last_good_step": step - 1,
            "micro_step": 1,
            "elected_rank": 1,
            "offender_rank": 1,
            "all_ranks": False,
            "first_bad_stage": "loss",
            "order": 3,
            "stages_any": ("loss", "grad", "grad_reduced"),
            "stages_all": (),
            "world_size": 2,
            "policy": "skip",
            "action": "skip",
            "advised_action": "skip",
            "consecutive_skips": 1,
            "window_skips": 1,
            "reason": "rank 1 had a bad loss",
        }
        return self._make(Verdict, rank, fields, changes)  # type: ignore[no-any-return]

    def testimony(self, step: int, rank: int = 1, **changes: Any) -> Testimony:
        """Rank 1's words on its NaN loss."""
        fields = {
            "event_id": event(step),
            "step": step,
            "micro_step": 1,
            "stage": "loss",
            "module": "head",
            "loss": float("nan"),
            "learning_rate": 0.001,
            "shard_id": ("shard-7",),
            "sample_ids": ("a.py:f", "a.py:g"),
            "valid_tokens": 0,
            "device": "cpu",
        }
        return self._make(Testimony, rank, fields, changes)  # type: ignore[no-any-return]

    def evidence(self, step: int, rank: int = 1, order_index: int = 0, **changes: Any) -> Evidence:
        """A bad gradient."""
        fields = {
            "event_id": event(step),
            "step": step,
            "micro_step": 1,
            "order_index": order_index,
            "kind": "grad",
            "name": "head.weight",
            "module": "head",
            "shape": (4, 2),
            "dtype": "float32",
            "nan_count": 8,
            "posinf_count": 0,
            "neginf_count": 0,
            "numel": 8,
            "is_bad": True,
        }
        return self._make(Evidence, rank, fields, changes)  # type: ignore[no-any-return]

    def run_end(self, rank: int = 0, **changes: Any) -> RunEnd:
        """A clean end."""
        fields = {
            "outcome": "finished",
            "exit_code": 0,
            "steps": 3,
            "applied_steps": 3,
            "records_written": self._seq[rank],
            "records_dropped": 0,
            "event_waits_timed_out": 0,
        }
        return self._make(RunEnd, rank, fields, changes)  # type: ignore[no-any-return]

    def gap(self, first: int, last: int, rank: int = 0, **changes: Any) -> Gap:
        """An admission that `first` to `last` were dropped."""
        fields = {"first_seq": first, "last_seq": last, "dropped": last - first + 1, "reason": "queue_full"}
        return self._make(Gap, rank, fields, changes)  # type: ignore[no-any-return]

    def one_of_each(self) -> list[Record]:
        """A record of every type."""
        return [
            self.run_start(),
            self.step(0),
            self.verdict(1),
            self.testimony(1),
            self.evidence(1),
            self.gap(5, 6),
            self.run_end(),
        ]
