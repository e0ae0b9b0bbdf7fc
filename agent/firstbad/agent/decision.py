"""The decision of one step, as every rank holds it: count of ballots, ruling of the budget, place in an incident."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firstbad.agent.incidents import IncidentBook, Membership
from firstbad.agent.lanes import MAX_ORDER, Count, Key
from firstbad.agent.policy import Budget, Ruling
from firstbad.schema import Action, IncidentKind, Policy, Stage

_DATA_STAGES = {Stage.PARAM, Stage.INPUT, Stage.FORWARD, Stage.LOSS, Stage.UPDATE}


@dataclass(frozen=True, slots=True)
class BadStep:
    """What is the matter with a bad step; a function of shared values alone."""

    key: Key
    all_ranks: bool
    kind: IncidentKind
    ruling: Ruling
    membership: Membership
    last_good_step: int

    @property
    def offender_rank(self) -> int | None:
        """The first offender; None when every rank saw it."""
        return None if self.all_ranks else self.key.rank

    @property
    def micro_step(self) -> int | None:
        """First bad micro step; None when no observer saw which."""
        return None if self.key.inexact else self.key.micro_step

    def who(self) -> str:
        """The offender in words."""
        return "every rank" if self.offender_rank is None else f"rank {self.offender_rank}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What every rank does with the update of `step`."""

    step: int
    count: Count
    bad: BadStep | None

    @property
    def action(self) -> Action:
        """apply, skip or stop."""
        return Action.APPLY if self.bad is None else self.bad.ruling.action

    @property
    def backs_off(self) -> bool:
        """The loss scale backs off, on all ranks."""
        bad = self.bad
        return bad is not None and bad.kind is IncidentKind.SCALE_PROBE and self.action is Action.SKIP

    def sentence(self) -> str:
        """The decision in one line for a log."""
        bad = self.bad
        if bad is None:
            return f"step {self.step} is good"
        micro = "unknown" if bad.micro_step is None else bad.micro_step
        return (
            f"step {self.step} is bad: first seen at {bad.who()}, micro step {micro}, stage {bad.key.stage.label} "
            f"-> {self.action.value} ({bad.ruling.reason})"
        )

    def verdict(self, *, world_size: int, policy: Policy) -> dict[str, Any]:
        """The body of the verdict record: the same on every rank."""
        if self.bad is None:
            raise ValueError("a good step has no verdict record")
        bad, key, ruling = self.bad, self.bad.key, self.bad.ruling
        return {
            "event_id": bad.membership.event_id,
            "incident_id": bad.membership.incident_id,
            "escalates": bad.membership.escalates,
            "kind": bad.kind,
            "step": self.step,
            "origin_step": self.step - (key.stage is Stage.UPDATE and self.step > 0),
            "last_good_step": bad.last_good_step,
            "micro_step": bad.micro_step,
            "elected_rank": key.rank,
            "offender_rank": bad.offender_rank,
            "all_ranks": bad.all_ranks,
            "first_bad_stage": key.stage.label,
            "order": None if key.order == MAX_ORDER else key.order,
            "stages_any": tuple(stage.label for stage in Stage if stage in self.count.stages_any),
            "stages_all": tuple(stage.label for stage in Stage if stage in self.count.stages_all),
            "world_size": world_size,
            "policy": policy,
            "action": ruling.action,
            "advised_action": ruling.advised,
            "consecutive_skips": ruling.consecutive,
            "window_skips": ruling.in_window,
            "reason": ruling.reason,
        }


class Bench:
    """Turns counts into decisions, step by step; holds the only state that decides: budget, incidents, good steps."""

    def __init__(self, budget: Budget, book: IncidentBook, world_size: int) -> None:
        self._budget = budget
        self._book = book
        self._world_size = world_size
        self._good = (-1, -1)
        """The last good step and the one before it."""

    def decide(self, step: int, count: Count, *, steered: bool) -> Decision:
        """
        Rule on a step. Steps come in order.

        Args:
            step: attempted updates, from 0.
            count: the reduced ballots.
            steered: false when the script's own scaler acts and we only observe; the same on every rank.
        """
        key = count.key
        if key is None:
            self._budget.good()
            self._good = (step, self._good[0])
            return Decision(step, count, None)
        probing = Stage.SCALER in count.stages_any and not count.stages_any & _DATA_STAGES and not count.at_floor
        kind = IncidentKind.SCALE_PROBE if probing else IncidentKind.FAULT
        rule = self._budget.probe if probing else self._budget.bad
        ruling = rule(steered=steered, degraded=count.degraded)
        if key.stage is Stage.UPDATE and self._good[0] == step - 1:
            # That step's update made the bad weights; it stays so for the bad steps that follow.
            self._good = (self._good[1], self._good[1])
        last_good = self._good[0]
        bad = BadStep(
            key=key,
            all_ranks=self._world_size > 1 and count.unanimous,
            kind=kind,
            ruling=ruling,
            membership=self._book.enter(step, kind),
            last_good_step=last_good,
        )
        return Decision(step, count, bad)
