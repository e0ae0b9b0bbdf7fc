"""The bad steps since the last good one: what they have in common says whether skipping can help, and what to load."""

from __future__ import annotations

from firstbad.agent.decision import BadStep, Decision
from firstbad.agent.errors import RunStopped
from firstbad.agent.finiteness import Finiteness
from firstbad.schema import Stage


class Streak:
    """Follows the decisions of one incarnation; the same on every rank but for the checkpoint's path."""

    def __init__(self) -> None:
        self._first: Decision | None = None
        self._everywhere = True
        self._length = 0
        self._checkpoint: str | None = None
        """The checkpoint last read before the last good step."""

    def see(self, decision: Decision, checkpoint: str | None) -> None:
        """
        Take in a decision; they come in order.

        Args:
            checkpoint: path of the checkpoint that the script read last, as far as known.
        """
        if decision.bad is None:
            self._first, self._everywhere, self._length = None, True, 0
            self._checkpoint = checkpoint
            return
        self._first = self._first or decision
        self._everywhere = self._everywhere and decision.count.unanimous
        self._length += 1

    def stop(self, decision: Decision, run_id: str, finiteness: Finiteness, checkpoint: str | None) -> RunStopped:
        """The error for a decision to stop, which has been seen."""
        bad = decision.bad
        if bad is None:
            raise ValueError("a good step does not stop a run")
        load = self._load(bad, finiteness, checkpoint)
        good = f"last good step {bad.last_good_step}" if bad.last_good_step >= 0 else "no step was good so far"
        return RunStopped(
            f"firstbad stopped the run before the update of step {decision.step}: {bad.ruling.reason}. First seen at "
            f"{bad.who()}, stage {bad.key.stage.label}; {good}; {finiteness.sentence()}. {load}. Next: firstbad show "
            f"{run_id} {decision.step}",
            step=decision.step,
            event_id=bad.membership.event_id,
            last_good_step=bad.last_good_step,
            finiteness=finiteness,
            load=load,
        )

    def _load(self, bad: BadStep, finiteness: Finiteness, checkpoint: str | None) -> str:
        """Whether skipping can help, and what to load."""
        first = self._first.bad if self._first is not None and self._first.bad is not None else bad
        since = self._first.step if self._first is not None else 0
        good, stage = first.last_good_step, first.key.stage
        read = f" (last read: {checkpoint})" if checkpoint else ""
        # Whether no checkpoint was read since the last good step.
        unread = checkpoint is None or checkpoint == self._checkpoint
        if stage is Stage.PARAM or (stage is Stage.UPDATE and not unread):
            older = f"older than {checkpoint}" if checkpoint else "older than the one that this run began with"
            return f"Skipping cannot help: weights were bad before step {since}. Load a checkpoint {older}"
        if stage is Stage.UPDATE:
            newest = _newest(good + 1, read)
            return f"Skipping cannot help: the update of step {good + 1} ruined the weights. {newest}"
        if finiteness.ruined:
            return f"Skipping cannot heal what is not finite. {_newest(good, read)}"
        if self._everywhere and self._length > 1:
            other = f", or the update of step {good} has ruined the weights" if good >= 0 else ""
            return (
                f"Skipping cannot help: since step {since} every step was bad at every rank. The batches are bad"
                f"{other}. {_newest(good, read)}"
            )
        return f"The weights are those after step {good}. {_newest(good + 1, read)}" if good >= 0 else _newest(0, read)


def _newest(step: int, read: str) -> str:
    newest = f"the newest checkpoint from before step {step}" if step > 0 else "what this run began with"
    return f"Load {newest}{read}"
