"""A run as `firstbad show RUN` tells it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from firstbad.cli.commands.incidents import print_incidents
from firstbad.cli.ledger import Ledger
from firstbad.cli.render import Terminal

WINDOW = 200
"""Steps over which max_skip_ratio is counted."""

_BAD_STEPS = """
SELECT * FROM bad_steps WHERE run_id = {run:String} AND incarnation = {incarnation:String} ORDER BY step
"""

_RANKS = """
SELECT * FROM ranks WHERE run_id = {run:String} AND incarnation = {incarnation:String} ORDER BY rank
"""

_INCIDENTS = """
SELECT * FROM incidents WHERE run_id = {run:String} AND incarnation = {incarnation:String} ORDER BY first_step
"""


def read_run(ledger: Ledger, run_id: str, attempts: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything that `show RUN` tells, as one JSON-able object."""
    return {"run_id": run_id, "attempts": [_read_attempt(ledger, start) for start in attempts]}


def _read_attempt(ledger: Ledger, start: dict[str, Any]) -> dict[str, Any]:
    which = {"run": start["run_id"], "incarnation": start["incarnation"]}
    has_bad = bool(start["bad_steps"])
    bad = ledger.dicts(_BAD_STEPS, **which) if has_bad else []
    return {
        **start,
        "ranks_seen": ledger.dicts(_RANKS, **which),
        "incidents": ledger.dicts(_INCIDENTS, **which) if has_bad else [],
        "skip_budget": _budget(start, bad),
        "policy_skip_would": _advice(start, bad),
    }


def _budget(start: dict[str, Any], bad: list[dict[str, Any]]) -> dict[str, Any] | None:
    if start["max_consecutive_skips"] is None or start["steps"] is None:
        return None
    last = start["steps"] - 1
    in_a_row = bad[-1]["consecutive_skips"] if bad and bad[-1]["step"] == last else 0
    return {
        "in_a_row": in_a_row,
        "in_a_row_most": max((row["consecutive_skips"] for row in bad), default=0),
        "in_a_row_allowed": start["max_consecutive_skips"],
        "in_window": sum(row["step"] > last - WINDOW for row in bad),
        "in_window_most": max((row["window_skips"] for row in bad), default=0),
        "in_window_allowed": int(start["max_skip_ratio"] * WINDOW),
        "window_steps": WINDOW,
    }


def _advice(start: dict[str, Any], bad: list[dict[str, Any]]) -> dict[str, Any] | None:
    if start["policy"] != "observe":
        return None
    stops = [row["step"] for row in bad if row["advised_action"] == "stop"]
    return {
        "skipped": sum(row["advised_action"] == "skip" for row in bad),
        "stopped_at_step": stops[0] if stops else None,
        "steps": [{"step": row["step"], "advised_action": row["advised_action"]} for row in bad],
    }


def print_run(terminal: Terminal, shown: dict[str, Any], shown_with: Sequence[str] = ()) -> None:
    """The same for a person; `shown_with` are the options that the next command needs too."""
    for number, attempt in enumerate(shown["attempts"]):
        if number:
            terminal.line()
        _print_attempt(terminal, attempt, shown_with)


def _print_attempt(terminal: Terminal, attempt: dict[str, Any], shown_with: Sequence[str]) -> None:
    terminal.heading(f"{attempt['run_id']}, attempt {attempt['attempt']}")
    terminal.facts(
        {
            "incarnation": attempt["incarnation"],
            "started": attempt["started_ts"],
            "ended": attempt["outcome"] or "open: still running, killed, or not collected yet",
            "ranks": f"{attempt['ranks']} of {'?' if attempt['world_size'] is None else attempt['world_size']}",
            "steps": None
            if attempt["steps"] is None
            else f"{attempt['steps']}, of which {attempt['bad_steps']} bad, {attempt['skipped_steps'] or 0} skipped",
            "policy": f"{attempt['policy']} (only observed: GradScaler)"
            if attempt["steered"] is False
            else attempt["policy"],
            "skip budget": _budget_text(attempt["skip_budget"]),
        }
    )
    advice = attempt["policy_skip_would"]
    if advice is not None:
        terminal.line(f"  {_advice_text(advice)}")
    terminal.line()
    _print_ranks(terminal, attempt["ranks_seen"])
    terminal.line()
    if attempt["incidents"]:
        print_incidents(terminal, attempt["incidents"])
        words = ["firstbad", "show", attempt["run_id"], str(attempt["incidents"][0]["first_step"]), *shown_with]
        terminal.line(f"  next: {shlex.join(words)}")
    elif attempt["bad_steps"]:
        words = ["firstbad", "verify", attempt["run_id"], *shown_with]
        terminal.line(f"  bad steps without a verdict in the ledger: events are missing, see {shlex.join(words)}")
    else:
        terminal.line("  no bad step")


def _print_ranks(terminal: Terminal, ranks: list[dict[str, Any]]) -> None:
    columns = {
        "rank": "rank",
        "host": "host",
        "device": "device",
        "first": "first_step",
        "last": "last_step",
        "ended": "outcome",
        "exit": "exit_code",
        "dropped": "records_dropped",
    }
    if any(row["error_type"] for row in ranks):
        columns |= {
            "error": "error_type",
            "text": "error",
            "in step": "end_step",
            "micro step": "end_micro_step",
            "shards": "end_shard_id",
            "samples": "end_sample_ids",
        }
    told = [{**row, "outcome": row["outcome"] or "open"} for row in ranks]
    terminal.table(
        list(columns), [[None if row[name] == [] else row[name] for name in columns.values()] for row in told]
    )


def _budget_text(budget: dict[str, Any] | None) -> str | None:
    if budget is None:
        return None
    return (
        f"in a row {budget['in_a_row']} (at most {budget['in_a_row_most']}) of {budget['in_a_row_allowed']}; "
        f"in the last {budget['window_steps']} steps {budget['in_window']} "
        f"(at most {budget['in_window_most']}) of {budget['in_window_allowed']}"
    )


def _advice_text(advice: dict[str, Any]) -> str:
    if not advice["steps"]:
        return "policy skip would have done nothing: no step was bad"
    text = f"policy skip would have left out {advice['skipped']} update{'' if advice['skipped'] == 1 else 's'}"
    if advice["stopped_at_step"] is None:
        return f"{text} and gone on"
    return f"{text} and stopped the run at step {advice['stopped_at_step']}, its budget used up"
