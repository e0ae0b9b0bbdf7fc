"""The skip budget and the grouping of bad steps into incidents."""

from __future__ import annotations

import pytest

from firstbad.agent.incidents import IncidentBook, event_id
from firstbad.agent.policy import WINDOW, Budget
from firstbad.schema import Action, IncidentKind, Policy

FAULT = IncidentKind.FAULT


def test_the_eleventh_skip_in_a_row_stops() -> None:
    """Ten in a row are allowed by default."""
    budget = Budget(Policy.SKIP, 10, 1.0)
    actions = [budget.bad().action for _ in range(11)]

    assert actions == [Action.SKIP] * 10 + [Action.STOP]


def test_the_eleventh_skip_among_the_last_200_steps_stops_also_while_fewer_have_run() -> None:
    """5 percent of 200 is ten, as an absolute count."""
    budget = Budget(Policy.SKIP, 10, 0.05)
    actions = []
    for _ in range(11):
        actions.append(budget.bad().action)
        budget.good()

    assert actions == [Action.SKIP] * 10 + [Action.STOP]


def test_skips_that_left_the_window_no_longer_count() -> None:
    """The window holds the last 200 steps, the bad one included."""
    budget = Budget(Policy.SKIP, 10, 0.05)
    for _ in range(10):
        budget.bad()
    for _ in range(WINDOW - 10):
        budget.good()

    assert budget.bad().in_window == 10


def test_a_good_step_ends_the_row_of_skips() -> None:
    """Consecutive means consecutive."""
    budget = Budget(Policy.SKIP, 2, 1.0)
    rulings = [budget.bad(), budget.bad()]
    budget.good()
    rulings.append(budget.bad())

    assert [ruling.consecutive for ruling in rulings] == [1, 2, 1]
    assert all(ruling.action is Action.SKIP for ruling in rulings)


@pytest.mark.parametrize("policy", Policy)
def test_every_policy_tells_what_skip_would_have_done(policy: Policy) -> None:
    """Observe never acts, stop acts at once, both advise as skip would."""
    budget = Budget(policy, 1, 1.0)
    rulings = [budget.bad(), budget.bad()]

    assert [ruling.advised for ruling in rulings] == [Action.SKIP, Action.STOP]
    expected = {
        Policy.OBSERVE: [Action.APPLY, Action.APPLY],
        Policy.SKIP: [Action.SKIP, Action.STOP],
        Policy.STOP: [Action.STOP, Action.STOP],
    }
    assert [ruling.action for ruling in rulings] == expected[policy]


def test_a_zero_budget_stops_at_the_first_bad_step() -> None:
    """--max-consecutive-skips 0 is the same as stopping."""
    assert Budget(Policy.SKIP, 0, 0.05).bad().action is Action.STOP


def test_nobody_acts_when_a_guard_is_broken_or_a_scaler_decides() -> None:
    """Degraded and unsteered steps are applied, and the reason says so."""
    budget = Budget(Policy.SKIP, 10, 0.05)
    degraded, unsteered = budget.bad(degraded=True), budget.bad(steered=False)

    assert degraded.action is unsteered.action is Action.APPLY
    assert "broken" in degraded.reason
    assert "GradScaler" in unsteered.reason


def test_bad_steps_with_fewer_than_ten_good_steps_between_are_one_incident() -> None:
    """The tenth good step ends it."""
    book = IncidentBook("run", "0" * 32)
    first, second, third = book.enter(5, FAULT), book.enter(15, FAULT), book.enter(26, FAULT)

    assert first.incident_id == first.event_id == event_id("run", "0" * 32, 5)
    assert second.incident_id == first.event_id
    assert third.incident_id == third.event_id


def test_a_fault_inside_a_scale_probe_escalates_once() -> None:
    """The opening record is never rewritten: a second event points at it."""
    book = IncidentBook("run", "0" * 32)
    probe = book.enter(1, IncidentKind.SCALE_PROBE)
    fault = book.enter(2, FAULT)
    again = book.enter(3, FAULT)

    assert (probe.escalates, fault.escalates, again.escalates) == (None, probe.event_id, None)
