"""From what the training thread handed over to the lines and frames of a segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from firstbad.agent.journal.inbox import Entry
from firstbad.schema import encode_frame, encode_record
from firstbad.schema.codec import MAX_PAYLOAD

FRAME_BYTES = 256 * 1024
"""A frame is closed before it exceeds this; a single longer record gets a frame of its own."""


class Encoder:
    """Makes records of entries: adds the envelope that all records of this rank share, checks, encodes."""

    def __init__(self, **envelope: Any) -> None:
        self._envelope = envelope

    def line(self, entry: Entry) -> bytes:
        """
        One record as a line.

        Raises:
            ValueError: the fields break the record's schema; the text names them, and shows plain values only.
        """
        seq, ts, model, fields = entry
        try:
            line = encode_record(model(**self._envelope, seq=seq, ts=ts, **fields))
        except ValidationError as error:
            raise ValueError(f"{model.__name__}: {_explain(error)}") from None
        except Exception as error:
            raise ValueError(f"{model.__name__}: {type(error).__name__}: {error}"[:1000]) from None
        if len(line) > MAX_PAYLOAD:
            raise ValueError(f"{model.__name__}: {len(line)} bytes are more than a frame holds ({MAX_PAYLOAD})")
        return line


def frames(lines: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Frames of moderate size that hold the lines in order, each with the number of its records."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        if waiting and size + len(line) > FRAME_BYTES:
            yield encode_frame(waiting), len(waiting)
            waiting, size = [], 0
        waiting.append(line)
        size += len(line) + 1
    if waiting:
        yield encode_frame(waiting), len(waiting)


def _explain(error: ValidationError) -> str:
    # Not str(error): it shows every input by its repr, and that of a tensor on a device waits for the device.
    problems = []
    for item in error.errors(include_url=False, include_context=False)[:5]:
        given = item["input"]
        shown = repr(given)[:80] if isinstance(given, str | int | float | None) else type(given).__name__
        problems.append(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']} (got {shown})")
    return "; ".join(problems)
