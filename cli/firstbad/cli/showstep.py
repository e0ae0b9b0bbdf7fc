"""A step as `firstbad show RUN STEP` tells it."""

from __future__ import annotations

from typing import Any

from firstbad.cli.errors import NotFound
from firstbad.cli.ledger import Ledger
from firstbad.cli.render import Terminal

_ROWS = """
SELECT * FROM steps WHERE run_id = {run:String} AND incarnation = {incarnation:String} AND step = {step:UInt64}
ORDER BY rank
"""

_EVENT = """
SELECT * FROM bad_steps WHERE run_id = {run:String} AND incarnation = {incarnation:String} AND step = {step:UInt64}
"""

_EVIDENCE = """
SELECT * FROM evidence WHERE run_id = {run:String} AND incarnation = {incarnation:String} AND step = {step:UInt64}
ORDER BY rank, order_index
"""
_ADVICE = {"apply": "have applied it", "skip": "have left the update out", "stop": "have stopped the run"}
_MOST_SAMPLES = 12
"""Sample ids that a terminal shows; a pipe and --json get all."""


def read_step(ledger: Ledger, run_id: str, attempts: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """
    Everything that `show RUN STEP` tells, as one JSON-able object, of the last attempt that has the step.

    Raises:
        NotFound: no attempt has it.
    """
    for start in reversed(attempts):
        which = {"run": run_id, "incarnation": start["incarnation"], "step": max(step, 0)}
        rows = ledger.dicts(_ROWS, **which)
        bad = ledger.dicts(_EVENT, **which) if start["bad_steps"] else []
        if step >= 0 and (rows or bad):
            return {
                "run_id": run_id,
                "attempt": start["attempt"],
                "incarnation": start["incarnation"],
                "step": step,
                "bad": bool(bad) or any(row["first_bad_stage"] for row in rows),
                "event": bad[0] if bad else None,
                "evidence": ledger.dicts(_EVIDENCE, **which) if start["bad_steps"] else [],
                "ranks": rows,
                "other_attempts_with_step": [
                    other["attempt"] for other in attempts if other is not start and (other["steps"] or 0) > step
                ],
            }
    reached = ", ".join(f"{start['steps'] or 0} in attempt {start['attempt']}" for start in attempts)
    raise NotFound(f"run {run_id} has no step {step} in the ledger; steps, counted from 0: {reached}")


def print_step(terminal: Terminal, shown: dict[str, Any]) -> None:
    """The same for a person."""
    event = shown["event"]
    what = f"{shown['run_id']}, attempt {shown['attempt']}, step {shown['step']}"
    if event is not None:
        terminal.heading(f"{what}: bad in stage {event['first_bad_stage']}, action {event['action']}")
        _print_event(terminal, event)
        if event["conflict"]:
            terminal.line("  ranks told different things about this step; see firstbad verify")
        _print_evidence(terminal, shown["evidence"], event["testified"])
    elif shown["bad"]:
        terminal.heading(f"{what}: bad, and its verdict is not in the ledger (see firstbad verify)")
    else:
        terminal.heading(f"{what}: good")
    terminal.line()
    terminal.line("what each rank saw")
    names = ("rank", "action", "stage", "own", "loss", "norm", "scale", "lr", "labels", "s", "samples")
    terminal.table(
        names,
        [
            (
                row["rank"],
                row["action"],
                row["first_bad_stage"],
                row["local_bad_stage"],
                row["loss"],
                row["total_grad_norm"],
                row["loss_scale"],
                row["learning_rate"],
                row["valid_tokens"],
                row["step_seconds"],
                _some(terminal, row["sample_ids"]),
            )
            for row in shown["ranks"]
        ],
    )
    if shown["other_attempts_with_step"]:
        others = ", ".join(str(attempt) for attempt in shown["other_attempts_with_step"])
        terminal.line(f"  this is the last attempt that has the step; --attempt shows it in attempt {others}")


def _print_event(terminal: Terminal, event: dict[str, Any]) -> None:
    first = event["incident_id"] == event["event_id"]
    terminal.facts(
        {
            "what": f"{event['kind']}, policy {event['policy']}: {event['reason']}",
            **({"policy skip would": _ADVICE[event["advised_action"]]} if event["policy"] == "observe" else {}),
            "who": _offender(event),
            "stage": event["first_bad_stage"],
            "micro step": event["micro_step"],
            "module": event["module"],
            "parameter": event["parameter"],
            "dataset": event["dataset_version"],
            "global batch": event["global_batch_id"],
            "shards": event["shard_id"] or None,
            "samples": _some(terminal, event["sample_ids"]),
            "valid labels": event["valid_tokens"],
            "loss": event["loss"],
            "gradient norm": event["total_grad_norm"],
            "loss scale": _change(event["loss_scale_before"], event["loss_scale_after"]),
            "learning rate": event["learning_rate"],
            "last good step": event["last_good_step"] if event["last_good_step"] >= 0 else "none",
            "made by step": event["origin_step"],
            "has reached": _reached(event),
            "incident": "opened by this step" if first else f"opened by event {event['incident_id']}",
            "event": event["event_id"],
            "commit": event["model_commit"],
            "config": event["config_hash"],
            "checkpoint": event["checkpoint_parent"],
        }
    )


def _offender(event: dict[str, Any]) -> str | None:
    if event["all_ranks"]:
        return "all ranks; none is called guilty"
    if event["rank"] is None:
        return "not known: seen only after the reduction"
    where = ", ".join(str(item) for item in (event["host"], event["device_uuid"]) if item)
    return f"rank {event['rank']}{f' on {where}' if where else ''}"


def _reached(event: dict[str, Any]) -> str:
    words = {1: "yes", 0: "no", None: "not known"}
    names = ("collective", "params", "optimizer", "checkpoint")
    return ", ".join(f"{name} {words[event[f'reached_{name}']]}" for name in names)


def _change(before: float | None, after: float | None) -> str | None:
    return None if before is None and after is None else f"{before} -> {after}"


def _print_evidence(terminal: Terminal, evidence: list[dict[str, Any]], testified: bool) -> None:
    terminal.line()
    if not evidence:
        why = "" if testified else ", and neither is the elected rank's testimony: batch and module are not known"
        terminal.line(f"no tensor statistics are in the ledger{why}")
        return
    terminal.line("tensors in the order of observation; good rows are the nearest finite neighbours")
    names = ("rank", "kind", "name", "state", "nan", "+inf", "-inf", "numel", "absmax", "shape", "dtype")
    terminal.table(
        names,
        [
            (
                row["rank"],
                row["kind"],
                row["name"],
                "BAD" if row["is_bad"] else "good",
                row["nan_count"],
                row["posinf_count"],
                row["neginf_count"],
                row["numel"],
                row["absmax_finite"],
                "x".join(str(size) for size in row["shape"]) or "scalar",
                f"{row['dtype']}{', scaled' if row['scaled'] else ''}",
            )
            for row in evidence
        ],
    )


def _some(terminal: Terminal, names: list[str]) -> list[str] | None:
    if terminal.width is None or len(names) <= _MOST_SAMPLES:
        return list(names) or None
    return [*names[:_MOST_SAMPLES], f"and {len(names) - _MOST_SAMPLES} more"]
