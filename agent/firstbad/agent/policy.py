"""What may be done about a bad step, and the budget that ends skipping. The same on every rank by construction."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from firstbad.schema import Action, Policy

WINDOW = 200
"""Steps over which the skip ratio is taken."""


_DEGRADED = "a rank's guard is broken, so no rank touches the update"


@dataclass(frozen=True, slots=True)
class Ruling:
    """The action for a bad step, what policy `skip` would have done, and the counts behind it."""

    action: Action
    advised: Action
    consecutive: int
    in_window: int
    reason: str


class Budget:
    """
    Counts bad steps and rules on each. Pure host arithmetic over decisions that all ranks share.

    Skipping stops at the skip after `max_consecutive` in a row, or when more than `max_ratio * 200` of the last 200
    steps were bad; that is an absolute count while fewer than 200 have run.
    """

    def __init__(self, policy: Policy, max_consecutive: int, max_ratio: float) -> None:
        self._policy = policy
        self._max_consecutive = max_consecutive
        self._max_in_window = int(max_ratio * WINDOW + 1e-9)
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._in_window = 0
        self._consecutive = 0

    def good(self) -> None:
        """Count a good step."""
        self._push(False)
        self._consecutive = 0

    def bad(self, *, steered: bool = True, degraded: bool = False) -> Ruling:
        """
        Count a bad step and rule on it.

        Args:
            steered: false when the script may only be observed (its scaler cannot be steered in this torch).
            degraded: a rank's guard is broken; all ranks stop deciding together.
        """
        self._push(True)
        self._consecutive += 1
        advised, why = self._advise()
        action, reason = advised, why
        if degraded:
            action, reason = Action.APPLY, _DEGRADED
        elif self._policy is Policy.OBSERVE:
            action, reason = Action.APPLY, f"policy observe never touches an update; skip would have meant: {why}"
        elif not steered:
            action, reason = (
                Action.APPLY,
                f"the script's GradScaler decides, this run is only observed; otherwise: {why}",
            )
        elif self._policy is Policy.STOP:
            action, reason = Action.STOP, "policy stop ends the run at the first bad step"
        return Ruling(action, advised, self._consecutive, self._in_window, reason)

    def probe(self, *, steered: bool, degraded: bool) -> Ruling:
        """
        Rule on an overflow that a lower loss scale will cure: left out, and not counted.

        Args: as of `bad`.
        """
        why = "skip: the loss scale backs off; such steps cost no budget while it is above its floor"
        action, reason = Action.SKIP, why
        if degraded:
            action, reason = Action.APPLY, _DEGRADED
        elif self._policy is Policy.OBSERVE or not steered:
            action, reason = Action.APPLY, f"the script's own scaler decides on each rank; otherwise: {why}"
        return Ruling(action, Action.SKIP, self._consecutive, self._in_window, reason)

    def _advise(self) -> tuple[Action, str]:
        if self._consecutive > self._max_consecutive:
            return Action.STOP, (
                f"stop: bad step {self._consecutive} in a row, {self._max_consecutive} may be skipped "
                "(--max-consecutive-skips)"
            )
        if self._in_window > self._max_in_window:
            return Action.STOP, (
                f"stop: {self._in_window} bad steps among the last {WINDOW}, {self._max_in_window} may be skipped "
                "(--max-skip-ratio)"
            )
        return Action.SKIP, (
            f"skip: {self._consecutive} in a row of {self._max_consecutive} allowed, "
            f"{self._in_window} among the last {WINDOW} steps of {self._max_in_window} allowed"
        )

    def _push(self, bad: bool) -> None:
        if len(self._recent) == WINDOW:
            self._in_window -= self._recent[0]
        self._recent.append(bad)
        self._in_window += bad
