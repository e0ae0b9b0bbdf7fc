"""
Errors of firstbad, as a tree:

    FirstbadError
    ├── RecordError        a record does not fit its schema
    │   └── UnknownRecord  no such record type or version
    └── FrameError         bytes are not a journal frame
"""

from __future__ import annotations


class FirstbadError(Exception):
    """Base of every error that firstbad raises on purpose."""


class RecordError(FirstbadError):
    """A record does not fit its schema; the text names the field, the value and the rule."""


class UnknownRecord(RecordError):
    """The record type or version is not known here; a newer firstbad wrote it."""


class FrameError(FirstbadError):
    """Bytes that should be a journal frame are not one: truncated, damaged or foreign."""
