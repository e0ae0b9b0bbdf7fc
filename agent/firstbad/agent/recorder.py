"""What this rank writes into the ledger: rows and events as fields of records, handed to the journal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from firstbad.agent import identity
from firstbad.agent.batches import IDS_IN_STEP, SHARDS_IN_STEP, Batch, compact, distinct
from firstbad.agent.decision import Decision
from firstbad.agent.errors import RunStopped
from firstbad.agent.journal import Journal
from firstbad.agent.settings import Settings
from firstbad.agent.statistics import TensorStatistics
from firstbad.agent.window import Mark, Window
from firstbad.schema import Evidence, Outcome, Record, RunEnd, RunStart, Step, Testimony, Verdict

EVIDENCE_ROWS = 256
Item = tuple[type[Record], dict[str, Any]]


@dataclass(slots=True)
class Tally:
    """Counters of one rank in one incarnation."""

    steps: int = 0
    applied: int = 0
    skipped: int = 0
    samples: int | None = None
    last_decision: float | None = None


@dataclass(frozen=True, slots=True)
class StaticContext:
    """What the ledger repeats of a rank's static context in each event."""

    device: str
    device_uuid: str | None
    model_commit: str | None
    config_hash: str | None
    precision: str | None
    dp_rank: int | None
    dp_size: int | None


class Recorder:
    """Makes the records of one rank. Reads only what is on the host already."""

    def __init__(
        self, journal: Journal, settings: Settings, rank: int, world_size: int, hosts: tuple[int, ...]
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._rank = rank
        self._world_size = world_size
        self._hosts = hosts
        self.tally = Tally()
        self.static: StaticContext | None = None

    def start(self, fields: dict[str, Any], static: StaticContext) -> None:
        """The run start, once."""
        self.static = static
        self._journal.append_event([(RunStart, fields)])

    def events(
        self, decision: Decision, window: Window, marks: list[Mark], learning_rate: float | None, parent: str | None
    ) -> None:
        """Verdict, testimony and evidence of a bad step, as far as this rank writes them; waits for the journal."""
        bad = decision.bad
        if bad is None:
            return
        items: list[Item] = []
        if self._rank in self._writers(bad.key.rank):
            items.append((Verdict, decision.verdict(world_size=self._world_size, policy=self._settings.policy)))
        if self._rank == bad.key.rank:
            items.append((Testimony, self._testimony(decision, window, marks, learning_rate, parent)))
            items += self._evidence(decision, marks)
        if items:
            self._journal.append_event(items)

    def row(
        self,
        decision: Decision,
        window: Window,
        marks: list[Mark],
        *,
        now: float,
        learning_rate: float | None,
        applied: bool | None,
        degraded: bool,
    ) -> None:
        """L1: this rank's row of the step, after its update was applied or left out."""
        tally = self.tally
        tally.steps = decision.step + 1
        tally.applied += applied is not False
        tally.skipped += applied is False
        batches = window.batch_list()
        samples = [sample for batch in batches for sample in batch.samples]
        if samples:
            tally.samples = (tally.samples or 0) + len(samples)
        shards = distinct(batches)
        loss, norm = window.loss(), window.grad_norm if isinstance(window.grad_norm, float) else None
        scale = window.loss_scale if isinstance(window.loss_scale, float) else None
        static = self.static
        dp_rank, dp_size = (static.dp_rank, static.dp_size) if static else (None, None)
        owned = window.grad_sq if not dp_rank else (0.0 if window.grad_sq is not None else None)
        self._journal.append(
            Step,
            {
                "step": decision.step,
                "trainer_step": window.trainer_step(),
                "applied_step": tally.applied,
                "micro_steps": window.kept_micro_steps,
                "consumed_samples": tally.samples,
                "loss": loss,
                "loss_finite": None if loss is None else math.isfinite(loss),
                "total_grad_norm": norm,
                "grad_norm_finite": None if norm is None else math.isfinite(norm),
                "owned_grad_sq": owned,
                "loss_scale": scale,
                "loss_scale_after": window.loss_scale_after,
                "learning_rate": learning_rate,
                "lr_advanced": window.lr_stepped if decision.step else None,
                "action": decision.action,
                "skipped_step": None if applied is None else not applied,
                "skip_count": tally.skipped,
                "first_bad_stage": decision.bad.key.stage.label if decision.bad else None,
                "local_bad_stage": marks[0].stage.label if marks else None,
                "degraded": degraded,
                "global_batch_id": _last(batch.global_batch_id for batch in batches),
                "dataset_version": _last(batch.dataset_version for batch in batches),
                "shard_id": shards[:SHARDS_IN_STEP],
                "shard_count": len(shards) if shards else None,
                "sample_ids": compact(samples, IDS_IN_STEP),
                "sample_count": len(samples) if samples else None,
                "valid_tokens": _sum(batch.valid_tokens for batch in batches),
                "effective_global_batch": len(samples) * dp_size if samples and dp_size else None,
                "dp_rank": dp_rank,
                "step_seconds": None if tally.last_decision is None else now - tally.last_decision,
                "decision_seconds": window.guard_seconds,
            },
        )
        tally.last_decision = now

    def end(
        self,
        window: Window,
        *,
        outcome: Outcome,
        exit_code: int | None,
        error: BaseException | None,
        observers_off: tuple[str, ...],
    ) -> None:
        """The run end; seals the journal."""
        in_progress = error is not None
        batch = window.pending or (window.batch_list() or [Batch()])[-1]
        counters = self._journal.counters
        fields: dict[str, Any] = {
            "outcome": outcome,
            "exit_code": exit_code,
            "steps": self.tally.steps,
            "applied_steps": self.tally.applied,
            "error_type": type(error).__name__ if error is not None else None,
            "error": str(error)[:4096] if error is not None else None,
            "records_written": counters.records_written,
            "records_dropped": counters.records_dropped,
            "event_waits_timed_out": counters.event_waits_timed_out,
            "observers_off": observers_off,
        }
        if in_progress:
            # An exception between a backward and its decision belongs to the micro step whose backward ran last,
            # one in a forward to the coming one: the batch told last is of that one.
            micro = window.coming_micro_step if window.pending else window.current_micro_step
            fields |= {
                "step": error.step if isinstance(error, RunStopped) else self.tally.steps,
                "micro_step": None if isinstance(error, RunStopped) else micro,
                "global_batch_id": batch.global_batch_id,
                "shard_id": batch.shards[:64],
                "sample_ids": compact(batch.samples, 64),
                "valid_tokens": batch.valid_tokens,
            }
        self._journal.close([(RunEnd, fields)])

    def _writers(self, elected: int) -> set[int]:
        """The elected rank and two others, on other hosts where there are any: a verdict outlives any node."""
        others = [(elected + offset) % self._world_size for offset in range(1, self._world_size)]
        elsewhere = [rank for rank in others if self._hosts[rank] != self._hosts[elected]]
        here = [rank for rank in others if self._hosts[rank] == self._hosts[elected]]
        return {elected, *(elsewhere + here)[:2]}

    def _testimony(
        self, decision: Decision, window: Window, marks: list[Mark], learning_rate: float | None, parent: str | None
    ) -> dict[str, Any]:
        bad = decision.bad
        assert bad is not None  # noqa: S101 - the only caller has checked
        micro = bad.micro_step
        told = [window.batches[micro]] if micro in window.batches else [] if micro is not None else window.batch_list()
        named = next((mark for mark in marks if mark.stage is bad.key.stage and mark.module), None)
        scale = window.loss_scale if isinstance(window.loss_scale, float) else None
        fields: dict[str, Any] = {
            "event_id": bad.membership.event_id,
            "step": decision.step,
            "micro_step": micro,
            "stage": bad.key.stage.label,
            "module": named.module if named else None,
            "parameter": named.parameter if named else None,
            "loss": window.loss() if micro is None else window.loss_of(micro),
            "total_grad_norm": window.grad_norm if isinstance(window.grad_norm, float) else None,
            "loss_scale_before": scale,
            "loss_scale_after": window.loss_scale_after,
            "learning_rate": learning_rate,
            "trainer_step": _last(batch.trainer_step for batch in told),
            "global_batch_id": _last(batch.global_batch_id for batch in told),
            "dataset_version": _last(batch.dataset_version for batch in told),
            "shard_id": distinct(told)[:1024],
            "sample_ids": compact([sample for batch in told for sample in batch.samples], 65_536),
            "valid_tokens": _sum(batch.valid_tokens for batch in told),
            "rng_state_hash": identity.rng_state_hash(),
            "checkpoint_parent": parent,
        }
        if self.static is not None:
            fields |= {
                "device": self.static.device,
                "device_uuid": self.static.device_uuid,
                "model_commit": self.static.model_commit,
                "config_hash": self.static.config_hash,
                "precision": self.static.precision,
            }
        return fields

    def _evidence(self, decision: Decision, marks: list[Mark]) -> list[Item]:
        bad = decision.bad
        assert bad is not None  # noqa: S101
        rows: list[Item] = []
        seen: set[tuple[str, str, int | None]] = set()
        # Later micro steps of the window only repeat what the first bad one left in the accumulated gradients.
        first = [mark for mark in marks if mark.micro_step == bad.micro_step]
        for mark in first or marks:
            for tensor in mark.evidence:
                identity_of_row = (tensor.kind.value, tensor.name, tensor.micro_step)
                if identity_of_row not in seen and len(rows) < EVIDENCE_ROWS:
                    seen.add(identity_of_row)
                    rows.append((Evidence, _evidence_fields(tensor, bad.membership.event_id, decision.step, len(rows))))
        return rows


def _evidence_fields(tensor: TensorStatistics, event_id: str, step: int, order: int) -> dict[str, Any]:
    return {
        "event_id": event_id,
        "step": step,
        "micro_step": tensor.micro_step,
        "order_index": order,
        "kind": tensor.kind,
        "name": tensor.name,
        "module": tensor.module,
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "nan_count": tensor.nan_count,
        "posinf_count": tensor.posinf_count,
        "neginf_count": tensor.neginf_count,
        "numel": tensor.numel,
        "absmax_finite": tensor.absmax_finite,
        "is_bad": tensor.is_bad,
    }


def _last(values: Iterable[Any]) -> Any:
    told = [value for value in values if value is not None]
    return told[-1] if told else None


def _sum(values: Iterable[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def script_argv() -> tuple[str, ...]:
    """The script's own arguments, cut to what a record takes."""
    return tuple(argument[:16_384] for argument in sys.argv[:1024])
