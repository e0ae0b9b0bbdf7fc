"""Wrong guards that the matrix has to tell from the right one. Applied inside a rank, after the fork."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from firstbad.agent.lanes import MAX_ORDER, MAX_RANK, Key
from firstbad.agent.observers.gradients import GradientObserver
from firstbad.agent.observers.parameters import ParameterObserver


class Mutant(StrEnum):
    """A plausible mistake of a guard."""

    LOWEST_RANK = "lowest flagged rank wins"
    OWNER = "owner after reduction wins"

    def apply(self) -> None:
        """Change the agent of this process for good."""
        _CHANGES[self]()


def _lowest_rank() -> None:
    """The election looks at the rank first; when and where come after it."""
    pack, unpack = Key.pack, Key.unpack
    below = 42  # bits of everything but the rank

    def rank_first(key: Key) -> int:
        packed = pack(key)
        return (packed & MAX_RANK) << below | packed >> 20

    def back(cls: type[Key], packed: int) -> Key:
        return unpack((packed & ((1 << below) - 1)) << 20 | packed >> below)

    Key.pack = rank_first  # type: ignore[method-assign]
    Key.unpack = classmethod(back)  # type: ignore[method-assign, assignment]


def _owner() -> None:
    """Only the gradients as they are before the update count: whoever holds a bad one there is the offender."""
    last_look = GradientObserver.before_update

    def before_update(observer: Any) -> None:
        window = observer.scene.window
        window.marks.clear()
        window.gradients_checked = False
        last_look(observer)
        for mark in window.marks:
            mark.order = MAX_ORDER

    GradientObserver.before_update = before_update  # type: ignore[method-assign]
    ParameterObserver.on_bad_step = lambda observer: None  # type: ignore[method-assign]


_CHANGES: dict[Mutant, Callable[[], None]] = {Mutant.LOWEST_RANK: _lowest_rank, Mutant.OWNER: _owner}
