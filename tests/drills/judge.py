"""Compares what the guard wrote with what the injector did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ledger
from tests.drills.cell import Cell
from tests.drills.faults import Fault
from tests.drills.parallelisms import REGISTRY
from tests.drills.train import Account
from tests.drills.truth import Truth

from firstbad.schema import Record, RunEnd, Stage, Step, Testimony, Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the ledger or the weights have wrong."""

    what: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


def judge(cell: Cell, accounts: Sequence[Account], reference: Sequence[Account] | None, journal: Path) -> list[Finding]:
    """Everything that is not exact; empty when the guard was right. Without a reference the bits are not looked at."""
    errors = [(rank, account.error) for rank, account in enumerate(accounts) if account.error]
    if errors:
        return [Finding("run", "no error", errors)]
    truth = Truth.of(sighting for account in accounts for sighting in account.log)
    records = ledger.records(journal)
    off = {name for record in records if isinstance(record, RunEnd) for name in record.observers_off}
    return [
        *([Finding("observers that switched themselves off", "none", sorted(off))] if off else []),
        *_decision(truth, records, len(accounts)),
        *_offender(cell, truth, records, len(accounts)),
        *(_bits(accounts, reference) if reference is not None else []),
    ]


def _decision(truth: Truth, records: list[Record], world: int) -> list[Finding]:
    """Every rank skipped the bad step and no other."""
    rows = [record for record in records if isinstance(record, Step)]
    skipped = sorted((row.step, row.rank) for row in rows if row.skipped_step)
    expected = [(truth.step, rank) for rank in range(world)]
    findings = [] if skipped == expected else [Finding("skipped (step, rank)", expected, skipped)]
    bad = sorted({verdict.step for verdict in records if isinstance(verdict, Verdict)})
    if bad != [truth.step]:
        findings.append(Finding("bad steps", [truth.step], bad))
    return findings


def _offender(cell: Cell, truth: Truth, records: list[Record], world: int) -> list[Finding]:
    """Rank, micro step, stage and module of the bad step."""
    verdicts = [record for record in records if isinstance(record, Verdict) and record.step == truth.step]
    if not verdicts:
        return []
    everyone = world > 1 and len(truth.ranks) == world
    rank = None if everyone else min(truth.ranks)
    micro_steps = {truth.micro_step, *({None} if _micro_step_is_unknowable(cell) else ())}
    findings = []
    for what, expected, found in [
        ("rank", {rank}, {verdict.offender_rank for verdict in verdicts}),
        ("micro step", micro_steps, {verdict.micro_step for verdict in verdicts}),
        ("stage", {_stage(cell, truth)}, {verdict.first_bad_stage for verdict in verdicts}),
        ("origin step", {truth.origin_step}, {verdict.origin_step for verdict in verdicts}),
    ]:
        if not found <= expected or len(found) != 1:
            findings.append(Finding(what, _one(expected), _one(found)))
    words = [record for record in records if isinstance(record, Testimony) and record.step == truth.step]
    findings += [Finding("module", truth.module, word.module) for word in words if not _is_at(word.module, truth)]
    return findings


def _stage(cell: Cell, truth: Truth) -> str:
    """The stage in the ledger. Where nothing is reduced a gradient that the script ruins is still a local one."""
    reduced = REGISTRY[cell.parallelism].reduces
    return (Stage.GRAD if truth.stage is Stage.GRAD_REDUCED and not reduced else truth.stage).label


def _micro_step_is_unknowable(cell: Cell) -> bool:
    """Nobody can see in which micro step one weight's own gradient went bad before it was reduced."""
    several = REGISTRY[cell.parallelism].micro_steps > 1
    return several and cell.fault in (Fault.OWN_GRADIENT, Fault.DIVISION)


def _is_at(module: str | None, truth: Truth) -> bool:
    """
    Exact or null: the module of the fault, one inside it, or the block around it. A fault in no module (data) or in
    all of them (an infinite learning rate) is not contradicted by any.
    """
    if module is None or truth.module is None:
        return module is None or truth.stage is not Stage.INPUT
    block = ".".join(truth.module.split(".")[:2])
    around = truth.module == module or truth.module.startswith(f"{module}.")
    return module.startswith(f"{truth.module}.") or (around and module.startswith(block))


def _bits(accounts: Sequence[Account], reference: Sequence[Account]) -> list[Finding]:
    """Parameters and optimizer state are those of a run that left the update out."""
    return [
        Finding(f"{what} of rank {rank}", theirs, mine)
        for rank, (account, other) in enumerate(zip(accounts, reference, strict=True))
        for what, mine, theirs in [
            ("parameters", account.parameters, other.parameters),
            ("optimizer state", account.optimizers, other.optimizers),
        ]
        if mine != theirs
    ]


def _one(values: set[object]) -> object:
    return next(iter(values)) if len(values) == 1 else sorted(values, key=str)
