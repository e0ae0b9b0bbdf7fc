"""The closed word lists of the ledger. Numbers are wire format: append, never renumber."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Stage(IntEnum):
    """
    Where in a micro step a bad value was first seen, in causal order: a smaller stage happens earlier.

    The number is the stage field of the election key (see `firstbad.agent`), so the order is a contract.
    """

    PARAM = 0
    """A parameter or buffer was bad before the forward (first step, or after a load)."""
    INPUT = 1
    """A floating-point input of the outermost module."""
    FORWARD = 2
    """A non-scalar output of a module."""
    LOSS = 3
    """A scalar output of the outermost module, or what backward was called on."""
    GRAD = 4
    """A local gradient, before any reduction."""
    GRAD_REDUCED = 5
    """A gradient after reduction, on a rank whose own contribution was finite or was not observed."""
    SCALER = 6
    """The loss scaler's own check of the gradients."""
    UPDATE = 7
    """Finite gradients, bad parameters: the previous update wrote them; seen when the next forward is bad."""

    @property
    def label(self) -> str:
        """The name used in records and SQL, lower case."""
        return self.name.lower()


STAGE_LABELS: tuple[str, ...] = tuple(stage.label for stage in Stage)


class Action(StrEnum):
    """What every rank did with the update of a step."""

    APPLY = "apply"
    SKIP = "skip"
    STOP = "stop"


class Policy(StrEnum):
    """What the agent may do about a bad step."""

    OBSERVE = "observe"
    """Record only; an update is never touched."""
    SKIP = "skip"
    """Skip the update on every rank, within a budget; stop when the budget is used up."""
    STOP = "stop"
    """Stop every rank at the first bad step, before its update."""


class IncidentKind(StrEnum):
    """What a bad step is an instance of."""

    FAULT = "fault"
    SCALE_PROBE = "scale_probe"
    """An FP16 loss scaler feeling for its limit: scaled gradients overflow, the loss is finite, back-off cures it."""


class Outcome(StrEnum):
    """How a rank's run ended."""

    FINISHED = "finished"
    """The script ran to its end (or called sys.exit(0))."""
    STOPPED = "stopped"
    """The agent stopped the run by policy."""
    FAILED = "failed"
    """An exception, or a non-zero sys.exit, left the script."""


class TensorKind(StrEnum):
    """What sort of tensor a row of evidence describes."""

    PARAM = "param"
    BUFFER = "buffer"
    INPUT = "input"
    OUTPUT = "output"
    LOSS = "loss"
    GRAD = "grad"
    GRAD_BUCKET = "grad_bucket"


class GapReason(StrEnum):
    """Why an agent wrote fewer records than it made."""

    QUEUE_FULL = "queue_full"
    """The writer did not keep up and the bounded queue dropped step rows."""
    JOURNAL_FULL = "journal_full"
    """The journal reached its size bound, or the disk is full; step rows are dropped, events are kept."""
    WRITE_FAILED = "write_failed"
    """write(2) failed with another error."""
    INVALID = "invalid"
    """A record failed its own schema; this is a bug in the agent."""
