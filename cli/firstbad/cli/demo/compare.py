"""
Hold what the ledger names against what the training script's own log names. Every bad step, not only the first.

The expected offender of a step is the smallest (micro step, rank) that logged an empty micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firstbad.cli.demo.order import Place
from firstbad.cli.demo.ranklogs import EmptyBatch


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One thing that the ledger and the log tell differently; `step` is None when it is about the whole run."""

    step: int | None
    what: str
    log: str
    ledger: str

    def __str__(self) -> str:
        where = "run" if self.step is None else f"step {self.step}"
        return f"{where}, {self.what}: the log says {self.log}, the ledger says {self.ledger}"


def expected_offenders(empty: Iterable[EmptyBatch]) -> dict[int, EmptyBatch]:
    """By step: the first empty micro-batch, by micro step and then rank."""
    first: dict[int, EmptyBatch] = {}
    for found in sorted(empty):
        first.setdefault(found.step, found)
    return first


def compare_with_log(
    empty: Sequence[EmptyBatch], bad_steps: Sequence[Mapping[str, Any]], shards: Mapping[str, str]
) -> list[Disagreement]:
    """
    Everything on which rows of `bad_steps` and the log disagree; empty when the ledger is right.

    `shards` names the shard of each sample.
    """
    expected = expected_offenders(empty)
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for row in bad_steps:
        rows.setdefault(int(row["step"]), []).append(row)
    found: list[Disagreement] = []
    for step in sorted(expected.keys() | rows.keys()):
        here = rows.get(step, [])
        if step not in expected:
            found.append(Disagreement(step, "bad", "no", f"yes, stage {here[0]['first_bad_stage']}"))
        elif len(here) != 1:
            found.append(Disagreement(step, "bad", "yes", f"yes, in {len(here)} different rows" if here else "no"))
        else:
            found += _compare_step(expected[step], here[0], shards)
    return found


def _compare_step(log: EmptyBatch, row: Mapping[str, Any], shards: Mapping[str, str]) -> Iterable[Disagreement]:
    pairs: dict[str, tuple[Any, Any]] = {
        "rank": (log.rank, row["rank"]),
        "micro step": (log.micro_step, row["micro_step"]),
        "stage": ("loss", row["first_bad_stage"]),
        "samples": (list(log.sample_ids), list(row["sample_ids"])),
        "shards": (list(dict.fromkeys(shards[sample] for sample in log.sample_ids)), list(row["shard_id"])),
        "valid labels": (0, row["valid_tokens"]),
        "action": ("skip", row["action"]),
        "applied": (False, row["applied"]),
        "conflict": (False, row["conflict"]),
    }
    for what, (right, named) in pairs.items():
        if named != right:
            yield Disagreement(log.step, what, _words(right), _words(named))


def compare_with_order(order: Sequence[Place], empty: Iterable[EmptyBatch], which: str) -> list[str]:
    """Whether a training met the micro-batches without a label that its data order holds, and no others."""
    laid_out, met = set(order), {Place(found.step, found.micro_step, found.rank) for found in empty}
    return [f"{which}: {place} is in the data order and not in the log" for place in sorted(laid_out - met)] + [
        f"{which}: {place} is in the log and not in the data order" for place in sorted(met - laid_out)
    ]


def _words(value: Any) -> str:
    return "nothing" if value is None or value == [] else ", ".join(value) if isinstance(value, list) else str(value)
