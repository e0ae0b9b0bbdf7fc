"""A ledger in small: hand-made records of several runs, each complete or incomplete in its own way."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from firstbad.schema import Evidence, Gap, Record, RunEnd, RunStart, Step, Testimony, Verdict, encode_frame
from firstbad.schema.codec import encode_record, encode_seal

NAN, INF = math.nan, math.inf
HOUR = 3_600_000_000
FIRST_TS = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z; run number n starts n hours later."""


class Run:
    """Collects the records of one attempt of one run, with dense sequence numbers per rank."""

    def __init__(self, run_id: str, number: int, *, ranks: int = 2, world_size: int | None = None) -> None:
        self.run_id = run_id
        self.incarnation = f"{number:04x}" + hashlib.md5(f"{run_id}/{number}".encode()).hexdigest()[:28]
        self.ranks = ranks
        self.world_size = ranks if world_size is None else world_size
        self.start_ts = FIRST_TS + number * HOUR
        self.records: dict[int, list[Record]] = {rank: [] for rank in range(ranks)}
        self._seq = dict.fromkeys(range(ranks), 0)

    def add(self, model: type[Record], rank: int, second: float, **fields: Any) -> None:
        """One record, `second` seconds after the start."""
        envelope = {
            "run_id": self.run_id,
            "incarnation": self.incarnation,
            "rank": rank,
            "seq": self._seq[rank],
            "ts": self.start_ts + round(second * 1_000_000) + rank,
            "host": f"node{rank // 2}",
        }
        self._seq[rank] += 1
        self.records[rank].append(model.model_validate({**envelope, **fields}, strict=False))

    def lose(self, rank: int, count: int = 1) -> None:
        """Sequence numbers that no record will carry."""
        self._seq[rank] += count

    def start(self, **changes: Any) -> None:
        """A run start on every rank."""
        fields: dict[str, Any] = {
            "world_size": self.world_size,
            "effective_global_batch": 12,
            "device": "cpu",
            "backend": "gloo",
            "argv": ["train.py", "--steps", "8"],
            "agent_version": "0.1.0",
            "torch_version": "2.15.0",
            "python_version": "3.11.7",
            "policy": "skip",
            "max_consecutive_skips": 10,
            "max_skip_ratio": 0.05,
            "steered": True,
            "model_commit": "c0ffee" * 6 + "c0ff",
            "model_dirty": False,
            "dataset_version": "stdlib-3.11",
            "precision": "fp32",
            **changes,
        }
        for rank in range(self.ranks):
            self.add(RunStart, rank, 0, local_rank=rank % 2, pid=1000 + rank, **fields)

    def step(self, step: int, *, ranks: Iterable[int] | None = None, **changes: Any) -> None:
        """A row of one step on `ranks`, good unless `changes` say otherwise."""
        for rank in range(self.ranks) if ranks is None else ranks:
            fields: dict[str, Any] = {
                "step": step,
                "applied_step": step + 1,
                "micro_steps": 2,
                "loss": 4.0 / (step + 1) + rank / 8,
                "loss_finite": True,
                "total_grad_norm": 1.5,
                "grad_norm_finite": True,
                "learning_rate": 0.001,
                "action": "apply",
                "skipped_step": False,
                "skip_count": 0,
                "degraded": False,
                "sample_ids": [f"{rank}-{step}"],
                "sample_count": 6,
                "valid_tokens": 640,
                "step_seconds": None if step == 0 else 0.25,
                **changes,
            }
            self.add(Step, rank, 1 + step, **fields)

    def verdict(self, step: int, *, writers: Iterable[int] | None = None, **changes: Any) -> str:
        """A bad step's verdict by `writers`; returns its event id."""
        event = self.event_id(step)
        fields: dict[str, Any] = {
            "event_id": event,
            "incident_id": event,
            "kind": "fault",
            "step": step,
            "origin_step": step,
            "last_good_step": step - 1,
            "micro_step": 1,
            "elected_rank": 1,
            "offender_rank": 1,
            "all_ranks": False,
            "first_bad_stage": "loss",
            "order": 0,
            "stages_any": ["loss", "grad", "grad_reduced"],
            "stages_all": ["grad_reduced"],
            "world_size": self.world_size,
            "policy": "skip",
            "action": "skip",
            "advised_action": "skip",
            "consecutive_skips": 1,
            "window_skips": 1,
            "reason": "1 of at most 10 skips in a row",
            **changes,
        }
        for rank in range(self.ranks) if writers is None else writers:
            self.add(Verdict, rank, 1.5 + step, **fields)
        return event

    def event_id(self, step: int) -> str:
        """The event id of a step, as this sample makes it."""
        return hashlib.md5(f"{self.run_id}/{self.incarnation}/{step}".encode()).hexdigest()

    def end(self, *, ranks: Iterable[int] | None = None, steps: int, **changes: Any) -> None:
        """A run end on `ranks`."""
        for rank in range(self.ranks) if ranks is None else ranks:
            fields: dict[str, Any] = {
                "outcome": "finished",
                "exit_code": 0,
                "steps": steps,
                "applied_steps": steps,
                "records_written": self._seq[rank],
                "records_dropped": 0,
                "event_waits_timed_out": 0,
                **changes,
            }
            self.add(RunEnd, rank, 2 + steps, **fields)

    def write(self, journal: Path) -> None:
        """Segments, as an agent leaves them: one per rank and lane, sealed."""
        for rank, records in self.records.items():
            for lane in ("events", "steps"):
                chosen = [item for item in records if isinstance(item, Step) == (lane == "steps")]
                path = journal / f"node{rank // 2}"
                path.mkdir(parents=True, exist_ok=True)
                body = b"".join(encode_frame([encode_record(item)]) for item in chosen)
                name = f"{self.run_id}-{self.incarnation}-r{rank}-p{1000 + rank}-{lane}-000000.fbj"
                (path / name).write_bytes(body + encode_seal())


def clean() -> Run:
    """Two ranks, four good steps, a proper end."""
    run = Run("clean", 1)
    run.start()
    for step in range(4):
        run.step(step)
    run.end(steps=4)
    return run


def fine_tune() -> Run:
    """Four ranks; rank 1 goes bad in micro step 1 of step 3, with testimony and evidence; the update is skipped."""
    run = Run("fine-tune-7b", 2, ranks=4)
    run.start()
    for step in range(3):
        run.step(step)
    bad = {"action": "skip", "skipped_step": True, "skip_count": 1, "applied_step": 3, "first_bad_stage": "loss"}
    norm = {"total_grad_norm": NAN, "grad_norm_finite": False}
    run.step(3, ranks=[0, 2, 3], **bad, **norm)
    run.step(3, ranks=[1], **bad, **norm, loss=NAN, loss_finite=False, local_bad_stage="loss", valid_tokens=212)
    event = run.verdict(3, writers=[0, 1, 2])
    run.add(
        Testimony,
        1,
        4.5,
        event_id=event,
        step=3,
        micro_step=1,
        stage="loss",
        module="transformer.head",
        loss=NAN,
        total_grad_norm=NAN,
        learning_rate=0.001,
        dataset_version="stdlib-3.11",
        shard_id=["asyncio", "json"],
        sample_ids=["json/decoder.py:JSONDecoder.decode", "asyncio/tasks.py:\x1b[31mgather"],
        valid_tokens=0,
        device="cpu",
        model_commit="c0ffee" * 6 + "c0ff",
        precision="fp32",
    )
    tensors: list[dict[str, Any]] = [
        {"name": "blocks.0.attn.weight", "nan_count": 0, "posinf_count": 0, "neginf_count": 0, "absmax_finite": 0.125},
        {"name": "blocks.1.attn.weight", "nan_count": 3, "posinf_count": 1, "neginf_count": 0, "absmax_finite": 2.5},
        {"name": "head.weight", "nan_count": 64, "posinf_count": 0, "neginf_count": 2, "absmax_finite": None},
        {"name": "head.bias", "nan_count": 0, "posinf_count": 0, "neginf_count": 0, "absmax_finite": 1e-7},
    ]
    for place, tensor in enumerate(tensors):
        is_bad = bool(tensor["nan_count"])
        run.add(
            Evidence,
            1,
            4.5,
            event_id=event,
            step=3,
            micro_step=1,
            order_index=place,
            kind="grad",
            module=tensor["name"].rsplit(".", 1)[0],
            param_group=0,
            shape=[8, 8],
            dtype="float32",
            scaled=False,
            numel=66,
            is_bad=is_bad,
            **tensor,
        )
    for step in range(4, 6):
        run.step(step, skip_count=1, applied_step=step)
    run.end(steps=6, applied_steps=5)
    return run


def observed() -> Run:
    """Policy observe: two bad steps in one incident, all ranks, applied; skip would have skipped, then stopped."""
    run = Run("observed", 3)
    run.start(policy="observe", max_consecutive_skips=1)
    run.step(0)
    unknown = {"micro_step": None, "offender_rank": None, "elected_rank": 0, "all_ranks": True}
    for step, advice in ((1, "skip"), (2, "stop")):
        run.step(step, loss=INF, loss_finite=False, first_bad_stage="loss", local_bad_stage="loss")
        run.verdict(
            step,
            **unknown,
            incident_id=run.event_id(1),
            last_good_step=0,
            policy="observe",
            action="apply",
            advised_action=advice,
            consecutive_skips=step,
            window_skips=step,
            reason="policy observe",
        )
    run.step(3)
    run.end(steps=4)
    return run


def restarted() -> list[Run]:
    """Two attempts: the first dies of an exception, the second finishes."""
    first, second = Run("restarted", 4), Run("restarted", 5)
    first.start()
    first.step(0)
    first.end(
        steps=1,
        outcome="failed",
        exit_code=1,
        step=1,
        micro_step=0,
        error_type="ValueError",
        error="label 70000 out of range",
        shard_id=["web-03"],
        sample_ids=["doc-17"],
    )
    second.start()
    for step in range(3):
        second.step(step)
    second.end(steps=3)
    return [first, second]


def with_hole() -> Run:
    """Rank 1 lost two records and never said so."""
    run = Run("bad-hole", 6)
    run.start()
    run.step(0)
    run.lose(1, 2)
    run.step(3, ranks=[1])
    for step in (1, 2, 3):
        run.step(step, ranks=[0])
    run.end(steps=4)
    return run


def with_drops() -> Run:
    """Rank 0 dropped one record and admits it."""
    run = Run("bad-drops", 7)
    run.start()
    run.step(0)
    run.lose(0)
    run.step(1, ranks=[1])
    run.add(Gap, 0, 2.5, first_seq=2, last_seq=2, dropped=1, reason="queue_full", detail="queue of 4096 records")
    run.step(2)
    run.end(steps=3)
    return run


def with_tail() -> Run:
    """Rank 1 stops two steps before its peer, without an end."""
    run = Run("bad-tail", 8)
    run.start()
    run.step(0)
    run.step(1, ranks=[0])
    run.step(2, ranks=[0])
    run.end(steps=3, ranks=[0])
    return run


def with_silent_rank() -> Run:
    """A world of three of which the ledger has two."""
    run = Run("bad-silent", 9, world_size=3)
    run.start()
    run.step(0)
    run.end(steps=1)
    return run


def killed() -> Run:
    """Both ranks were killed after step 1: no end anywhere."""
    run = Run("bad-killed", 10)
    run.start()
    run.step(0)
    run.step(1)
    return run


def with_conflict() -> Run:
    """Two ranks hold different verdicts of one step."""
    run = Run("bad-conflict", 11)
    run.start()
    run.step(0)
    run.step(1, action="skip", skipped_step=True, skip_count=1, applied_step=1, first_bad_stage="loss")
    run.verdict(1, writers=[0])
    run.verdict(1, writers=[1], micro_step=0)
    run.end(steps=2, applied_steps=1)
    return run


def with_disagreement() -> Run:
    """Rank 0 applied the update of step 1, rank 1 skipped it."""
    run = Run("bad-disagree", 12)
    run.start()
    run.step(0)
    run.step(1, ranks=[0])
    run.step(1, ranks=[1], action="skip", skipped_step=True, skip_count=1, applied_step=1)
    run.end(steps=2)
    return run


def with_dead_letter(journal: Path) -> Run:
    """Sixteen foreign bytes between two frames of rank 0."""
    run = Run("bad-letter", 13)
    run.start()
    run.step(0)
    run.end(steps=1)
    run.write(journal)
    path = next(journal.glob(f"node0/{run.run_id}-*-r0-*-events-*.fbj"))
    body = path.read_bytes()
    at = body.index(b"\xffFB\x01", 1)
    path.write_bytes(body[:at] + b"not a frame here" + body[at:])
    return run


def write_all(journal: Path) -> None:
    """Every run of this module."""
    runs = [clean(), fine_tune(), observed(), *restarted(), with_hole(), with_drops(), with_tail()]
    runs += [with_silent_rank(), killed(), with_conflict(), with_disagreement()]
    for run in runs:
        run.write(journal)
    with_dead_letter(journal)
