"""Attributes of other modules that the agent replaced, and the way back."""

from __future__ import annotations

from typing import Any


class Patches:
    """Replaces attributes and restores them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any, bool]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`; the original is remembered, also that there was none of its own."""
        own = name in vars(owner)
        self._undo.append((owner, name, value, vars(owner).get(name), own))
        setattr(owner, name, value)

    def restore(self) -> None:
        """
        Put every original back, except where somebody else has wrapped ours since: theirs stays, and ours in it does
        nothing once the guard sleeps.
        """
        while self._undo:
            owner, name, ours, original, own = self._undo.pop()
            if vars(owner).get(name) is not ours:
                continue
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
