"""Attributes of other modules that the agent replaced, and the way back."""

from __future__ import annotations

from typing import Any


class Patches:
    """Replaces attributes and restores them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`; the original is remembered, also that there was none of its own."""
        own = name in vars(owner)
        self._undo.append((owner, name, vars(owner).get(name), own))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Put every original back."""
        while self._undo:
            owner, name, original, own = self._undo.pop()
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
