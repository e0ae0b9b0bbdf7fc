"""Is the ledger of a run complete? Every way in which it may not be, as findings in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from firstbad.cli.ledger import Ledger

CHECKS = ("ranks", "sequence", "tails", "agreement", "verdicts", "conflicts", "dead_letters")
"""Names of the checks, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as a complete ledger has it. `rank` and `step` are null where it is not about one."""

    check: str
    text: str
    rank: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was found about one start of a run."""

    run_id: str
    incarnation: str
    attempt: int
    ranks: int
    steps: int
    records: int
    findings: tuple[Finding, ...]

    @property
    def complete(self) -> bool:
        """Nothing was found."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "complete": self.complete}


def examine(ledger: Ledger, run_id: str, attempt: int | None = None) -> list[Attempt]:
    """Every attempt of a run, or the one given, examined."""
    starts = ledger.dicts(
        "SELECT * FROM runs WHERE run_id = {run:String} AND ({attempt:Int64} < 0 OR attempt = {attempt:Int64}) "
        "ORDER BY attempt",
        run=run_id,
        attempt=-1 if attempt is None else attempt,
    )
    return [_examine_start(ledger, start) for start in starts]


def _examine_start(ledger: Ledger, start: dict[str, Any]) -> Attempt:
    which = {"run": start["run_id"], "incarnation": start["incarnation"]}
    ranks = ledger.dicts(_RANKS, **which)
    findings = [
        *_absent_ranks(start, ranks),
        *_sequence(ledger.dicts(_GAPS, **which)),
        *_tails(ranks),
        *_agreement(ledger.dicts(_DISAGREEING, **which)),
        *_verdicts(ledger, which),
        *_conflicts(ledger.dicts(_CONFLICTS, **which)),
        *_dead_letters(ledger.dicts(_LETTERS, mark=f"-{start['incarnation']}-r")),
    ]
    return Attempt(
        run_id=start["run_id"],
        incarnation=start["incarnation"],
        attempt=start["attempt"],
        ranks=len(ranks),
        steps=start["steps"] or 0,
        records=sum(row["records"] for row in ranks),
        findings=tuple(findings),
    )


_RANKS = """
SELECT * FROM ranks WHERE run_id = {run:String} AND incarnation = {incarnation:String} ORDER BY rank
"""

_GAPS = """
SELECT * FROM gaps
WHERE run_id = {run:String} AND incarnation = {incarnation:String} AND reason IN ('missing', 'dropped')
ORDER BY rank, first_seq
"""

_CONFLICTS = """
SELECT * FROM conflicts WHERE run_id = {run:String} AND incarnation = {incarnation:String} ORDER BY step
"""

_DISAGREEING = """
SELECT step, groupUniqArray(action) AS actions, groupUniqArray(ifNull(toString(first_bad_stage), 'good')) AS stages,
       arraySort(groupArray((rank, action, first_bad_stage))) AS views
FROM steps WHERE run_id = {run:String} AND incarnation = {incarnation:String}
GROUP BY step HAVING length(actions) > 1 OR length(stages) > 1 ORDER BY step
"""

_BAD_ROWS = """
SELECT step, groupUniqArray(action) AS actions FROM steps
WHERE run_id = {run:String} AND incarnation = {incarnation:String}
    AND (first_bad_stage IS NOT NULL OR action != 'apply')
GROUP BY step ORDER BY step
"""

_VERDICTS = """
SELECT step, groupUniqArray(action) AS actions FROM bad_steps
WHERE run_id = {run:String} AND incarnation = {incarnation:String}
GROUP BY step
"""

_LETTERS = """
SELECT segment, reason, count() AS letters, min(offset) AS first_offset FROM dead_letters
WHERE position(segment, {mark:String}) > 0 GROUP BY segment, reason ORDER BY segment, reason
"""


def _absent_ranks(start: dict[str, Any], ranks: list[dict[str, Any]]) -> list[Finding]:
    if start["world_size"] is None:
        return [Finding("ranks", "no rank's run start is in the ledger, so the number of ranks is not known")]
    absent = sorted(set(range(start["world_size"])) - {row["rank"] for row in ranks})
    return [Finding("ranks", f"rank {rank} of {start['world_size']} has not a single record", rank) for rank in absent]


def _sequence(gaps: list[dict[str, Any]]) -> list[Finding]:
    findings = []
    for gap in gaps:
        first, last = gap["first_seq"], gap["last_seq"]
        which = f"record {first}" if first == last else f"records {first} to {last}"
        detail = f": {gap['detail']}" if gap["detail"] else ""
        why = (
            f"dropped by the agent ({gap['drop_reason']}{detail})"
            if gap["admitted"]
            else "missing, and the agent never said that it dropped any: not collected yet, or lost with its segment"
        )
        findings.append(Finding("sequence", f"rank {gap['rank']}: {which} {why}", gap["rank"]))
    return findings


def _tails(ranks: list[dict[str, Any]]) -> list[Finding]:
    furthest = max((row["last_step"] for row in ranks if row["last_step"] is not None), default=None)
    findings = []
    for row in ranks:
        last = row["last_step"]
        behind = furthest is not None and (last is None or last < furthest)
        reached = "no step" if last is None else f"step {last}"
        if row["outcome"] is None:
            peers = f", its peers step {furthest}" if behind else ""
            text = (
                f"rank {row['rank']} has no end: still running, killed, or not collected; it reached {reached}{peers}"
            )
            findings.append(Finding("tails", text, row["rank"], last))
        elif behind:
            text = f"rank {row['rank']} ended ({row['outcome']}) at {reached}, its peers reached step {furthest}"
            findings.append(Finding("tails", text, row["rank"], last))
    return findings


def _agreement(rows: list[dict[str, Any]]) -> list[Finding]:
    findings = []
    for row in rows:
        views = "; ".join(f"rank {rank}: {action}, {stage or 'good'}" for rank, action, stage in row["views"][:8])
        more = f"; and {len(row['views']) - 8} more" if len(row["views"]) > 8 else ""
        findings.append(
            Finding("agreement", f"step {row['step']}: the ranks disagree: {views}{more}", step=row["step"])
        )
    return findings


def _verdicts(ledger: Ledger, which: dict[str, str]) -> list[Finding]:
    rows = ledger.dicts(_BAD_ROWS, **which)
    told = {row["step"]: row["actions"] for row in ledger.dicts(_VERDICTS, **which)} if rows else {}
    findings = []
    for row in rows:
        step, actions = row["step"], row["actions"]
        if step not in told:
            text = f"step {step} was bad or skipped, and its verdict is not in the ledger"
            findings.append(Finding("verdicts", text, step=step))
        elif not set(actions) & set(told[step]):
            text = f"step {step}: its rows say {', '.join(actions)}, its verdict says {', '.join(told[step])}"
            findings.append(Finding("verdicts", text, step=step))
    return findings


def _conflicts(rows: list[dict[str, Any]]) -> list[Finding]:
    return [
        Finding(
            "conflicts",
            f"{row['versions']} different {row['record']} records for {row['natural_key']}, "
            f"written by rank {', '.join(map(str, row['ranks']))}",
            step=row["step"],
        )
        for row in rows
    ]


def _dead_letters(rows: list[dict[str, Any]]) -> list[Finding]:
    return [
        Finding(
            "dead_letters",
            f"{row['letters']} dead letter{'' if row['letters'] == 1 else 's'} ({row['reason']}) in {row['segment']}, "
            f"the first at byte {row['first_offset']}",
        )
        for row in rows
    ]
