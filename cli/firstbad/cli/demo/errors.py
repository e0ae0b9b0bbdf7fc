"""What can go wrong before the demo has an answer."""

from __future__ import annotations

from firstbad.cli.errors import CommandError


class DemoError(CommandError):
    """The demo cannot go on; the text says why and what to do."""


class NoSuchOrder(DemoError):
    """No seed lays out the data as the demo needs it."""


class TrainingFailed(DemoError):
    """A training ended badly; the text ends with the last lines of its log."""
