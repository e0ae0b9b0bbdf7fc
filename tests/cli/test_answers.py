"""
What the commands answer about the sample ledger, compared with files under golden/.

Set FIRSTBAD_UPDATE_GOLDEN=1 to write the files anew after a wanted change, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tests.cli.commandline import Console

GOLDEN = Path(__file__).with_name("golden")

ANSWERS = {
    "runs": ("runs",),
    "incidents": ("incidents",),
    "incidents_of_one_run": ("incidents", "fine"),
    "show_run_clean": ("show", "clean"),
    "show_run_with_incident": ("show", "fine-tune-7b"),
    "show_run_observed": ("show", "observed"),
    "show_run_restarted": ("show", "restarted"),
    "show_run_first_attempt": ("show", "restarted", "--attempt", "1"),
    "show_bad_step": ("show", "fine-tune-7b", "3"),
    "show_bad_step_all_ranks": ("show", "observed", "2"),
    "show_good_step": ("show", "clean", "2"),
    "show_step_of_two_attempts": ("show", "restarted", "0"),
    "verify_clean": ("verify", "clean"),
    "verify_hole": ("verify", "bad-hole"),
    "verify_drops": ("verify", "bad-drops"),
    "verify_tail": ("verify", "bad-tail"),
    "verify_silent": ("verify", "bad-silent"),
    "verify_killed": ("verify", "bad-killed"),
    "verify_conflict": ("verify", "bad-conflict"),
    "verify_disagree": ("verify", "bad-disagree"),
    "verify_letter": ("verify", "bad-letter"),
    "verify_restarted": ("verify", "restarted"),
}

_INGEST = re.compile(r'"(ingest_ts|\w*_ingest_ts)": "[^"]+"')


def compare(name: str, text: str) -> None:
    """The golden file of that name holds `text`."""
    path = GOLDEN / name
    if os.environ.get("FIRSTBAD_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_on_a_pipe(console: Console, name: str) -> None:
    """Tables in full: no id shortened, no line wrapped, no colour."""
    answer = console(*ANSWERS[name])

    assert answer.code == (1 if name.startswith("verify_") and "bad-" in ANSWERS[name][1] else 0), answer.err
    assert answer.err == ""
    compare(f"{name}.txt", answer.out)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_as_json(console: Console, name: str) -> None:
    """Strict JSON with the same exit code."""
    answer = console(*ANSWERS[name], "--json")

    assert answer.code == console(*ANSWERS[name]).code
    assert answer.json is not None
    compare(f"{name}.json", _INGEST.sub(r'"\1": "ingested"', answer.out))


def test_the_bad_step_on_a_narrow_terminal(console: Console) -> None:
    """Nothing is wider than the screen, and a run's own text cannot steer it."""
    answer = console("show", "fine-tune-7b", "3", columns=100)

    plain = re.sub(r"\x1b\[[0-9;]*m", "", answer.out)
    assert max(len(line) for line in plain.splitlines()) <= 100
    assert "\x1b" not in plain
    assert "asyncio/tasks.py:\\x1b[31mgather" in plain


def test_the_bad_step_answers_who_where_and_which_data(console: Console) -> None:
    """The fields that an on-call person needs, by name, from one JSON object."""
    shown = console("show", "fine-tune-7b", "3", "--json").json

    event = shown["event"]
    assert (event["rank"], event["micro_step"], event["first_bad_stage"]) == (1, 1, "loss")
    assert event["valid_tokens"] == 0
    assert event["loss"] == "NaN"
    assert event["loss_scale_before"] is None
    assert event["shard_id"] == ["asyncio", "json"]
    assert [row["is_bad"] for row in shown["evidence"]] == [False, True, True, False]
    assert [row["loss"] == "NaN" for row in shown["ranks"]] == [False, True, False, False]


def test_observe_says_what_skip_would_have_done(console: Console) -> None:
    """One update left out, then a stop at step 2, although nothing was touched."""
    (attempt,) = console("show", "observed", "--json").json["attempts"]

    assert attempt["policy_skip_would"] == {
        "skipped": 1,
        "stopped_at_step": 2,
        "steps": [{"step": 1, "advised_action": "skip"}, {"step": 2, "advised_action": "stop"}],
    }
    assert "stopped the run at step 2" in console("show", "observed").out


def test_an_exception_is_shown_with_the_batch_that_was_in_progress(console: Console) -> None:
    """Which error, in which step and micro step, on which samples, per rank."""
    lines = console("show", "restarted", "--attempt", "1").out.splitlines()

    (row,) = [" ".join(line.split()) for line in lines if line.startswith("   1 ")]
    assert row.endswith("failed 1 0 ValueError label 70000 out of range 1 0 web-03 doc-17")


@pytest.mark.parametrize(
    ("run", "checks"),
    [
        ("clean", set()),
        ("fine-tune-7b", set()),
        ("observed", set()),
        ("restarted", set()),
        ("bad-hole", {"sequence"}),
        ("bad-drops", {"sequence"}),
        ("bad-tail", {"tails"}),
        ("bad-silent", {"ranks"}),
        ("bad-killed", {"tails"}),
        ("bad-conflict", {"conflicts"}),
        ("bad-disagree", {"agreement", "verdicts"}),
        ("bad-letter", {"dead_letters"}),
    ],
)
def test_verify_names_exactly_what_is_wrong(console: Console, run: str, checks: set[str]) -> None:
    """Each kind of incompleteness alone; 0 when complete, 1 when not."""
    answer = console("verify", run, "--json")

    found = {finding["check"] for attempt in answer.json["attempts"] for finding in attempt["findings"]}
    assert found == checks
    assert answer.code == (1 if checks else 0)
    assert answer.json["complete"] is not bool(checks)
    plain = console("verify", run).out
    assert plain.endswith(f"the ledger of {run} is {'NOT complete' if checks else 'complete'}\n")


def test_a_run_may_be_named_by_its_beginning_or_latest(console: Console) -> None:
    """A unique beginning is enough; an ambiguous or a wrong one lists candidates."""
    assert console("show", "fine", "--json").json["run_id"] == "fine-tune-7b"
    assert console("show", "latest", "--json").json["run_id"] == "bad-letter"

    ambiguous, unknown = console("verify", "bad-"), console("show", "nosuch")
    assert ambiguous.code == unknown.code == 2
    assert "begins 8 runs" in ambiguous.err
    assert "bad-letter" in unknown.err


@pytest.mark.parametrize("argv", [("clean", "99"), ("clean", "-1"), ("restarted", "2", "--attempt", "1")])
def test_a_step_that_is_not_there(console: Console, argv: tuple[str, ...]) -> None:
    """Exit code 2, and how many steps there are."""
    answer = console("show", *argv)

    assert answer.code == 2
    assert answer.out == ""
    assert "step" in answer.err


def test_an_attempt_that_is_not_there(console: Console) -> None:
    """Named, by show and by verify."""
    assert console("show", "clean", "--attempt", "7").code == 2
    assert "attempt 7" in console("verify", "clean", "--attempt", "7").err


def test_every_json_answer_is_one_document(console: Console) -> None:
    """A pipe to a JSON tool always works, also when there is nothing to tell."""
    for argv in (("runs",), ("incidents",), ("incidents", "clean"), ("show", "clean"), ("verify", "clean")):
        json.loads(console(*argv, "--json").out)
