"""Which bad steps belong together. The same on every rank: it follows from shared verdicts alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from firstbad.schema import IncidentKind

QUIET_STEPS = 10
"""An incident ends after this many good steps in a row."""


def event_id(run_id: str, incarnation: str, step: int) -> str:
    """The id of a bad step: 32 hexadecimal digits over what all ranks know."""
    return hashlib.blake2b(f"{run_id}\0{incarnation}\0{step}".encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Membership:
    """A bad step's place: its own id, its incident's opening id, and whether it turns a probe into a fault."""

    event_id: str
    incident_id: str
    escalates: str | None


class IncidentBook:
    """Groups the bad steps of one incarnation into incidents."""

    def __init__(self, run_id: str, incarnation: str) -> None:
        self._run_id = run_id
        self._incarnation = incarnation
        self._opening: str | None = None
        self._kind = IncidentKind.FAULT
        self._last_bad = -1

    def enter(self, step: int, kind: IncidentKind) -> Membership:
        """Add a bad step; steps come in order."""
        this = event_id(self._run_id, self._incarnation, step)
        quiet = step - self._last_bad - 1
        self._last_bad = step
        if self._opening is None or quiet >= QUIET_STEPS:
            self._opening, self._kind = this, kind
            return Membership(this, this, None)
        escalates = None
        if self._kind is IncidentKind.SCALE_PROBE and kind is IncidentKind.FAULT:
            escalates, self._kind = self._opening, kind
        return Membership(this, self._opening, escalates)
