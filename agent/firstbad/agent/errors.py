"""
Errors that the agent raises into a training script. All of them are raised on every rank.

    FirstbadError
    └── AgentError (RuntimeError)
        ├── RunStopped         the policy stopped the run
        ├── StepMismatch       ranks are in different steps
        ├── SettingsMismatch   ranks were started with different settings, or one refused to start
        └── ConsensusFailed    the decision could not be taken: a peer died or hangs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstbad.schema import FirstbadError

if TYPE_CHECKING:
    from firstbad.agent.finiteness import Finiteness


class AgentError(FirstbadError, RuntimeError):
    """Base of what the agent raises into a script; an `except RuntimeError` catches it too."""


class RunStopped(AgentError):
    """
    The policy stopped the run before the update of `step`. The text says all of it, with the next command.

    Attributes:
        step, event_id: the step that stopped the run, and its event in the ledger.
        last_good_step: -1 when there is none.
        finiteness: whether parameters, buffers and optimizer state of this rank are finite now; None: not looked at.
        load: what to load, in words.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int,
        event_id: str,
        last_good_step: int,
        finiteness: Finiteness | None = None,
        load: str = "",
    ) -> None:
        super().__init__(message)
        self.step = step
        self.event_id = event_id
        self.last_good_step = last_good_step
        self.finiteness = finiteness
        self.load = load


class StepMismatch(AgentError):
    """Ranks met in the decision of different steps: `lowest` and `highest`; going on would mix their updates."""

    def __init__(self, message: str, *, lowest: int, highest: int) -> None:
        super().__init__(message)
        self.lowest = lowest
        self.highest = highest


class SettingsMismatch(AgentError):
    """Ranks were started with different settings, or one refused; the text names the odd ranks."""


class ConsensusFailed(AgentError):
    """The decision of a step could not be taken because a peer died or did not answer; no rank may decide alone."""
