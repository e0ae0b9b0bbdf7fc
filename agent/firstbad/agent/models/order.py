"""
Place in causal order inside a stage, as 23 bits of the election key: pipeline stage (5 bits), number of the exchange in
its micro step (9), position in the model (9); smaller is earlier. Each saturates at its last value, which also stands
for unknown.

Ranks of one job run one program, so the n-th exchange of a micro step is the same on all ranks of a group: whoever put
a bad value into an earlier exchange than the others were handed theirs in is their cause.
"""

from __future__ import annotations

LAST = (1 << 9) - 1
LAST_PIPELINE = (1 << 5) - 1


def order(*, pipeline: int = 0, exchange: int = LAST, position: int = LAST) -> int:
    """The three places in one integer."""
    return min(pipeline, LAST_PIPELINE) << 18 | min(exchange, LAST) << 9 | min(max(position, 0), LAST)


class Exchanges:
    """Counts the exchanges of each forward and each backward of a micro step, from 0."""

    def __init__(self) -> None:
        self._place: tuple[object, str, int] = (None, "", 0)
        self._last = -1

    def coming(self, window: object, phase: str, micro_step: int) -> int:
        """The number that the next exchange of this window, phase and micro step will have."""
        place = (window, phase, micro_step)
        if self._place[0] is not window or self._place[1:] != place[1:]:
            self._place, self._last = place, -1
        return self._last + 1

    def take(self, window: object, phase: str, micro_step: int) -> int:
        """Count an exchange; its number."""
        self._last = self.coming(window, phase, micro_step)
        return self._last
